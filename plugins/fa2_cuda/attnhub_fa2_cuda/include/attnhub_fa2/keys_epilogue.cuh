// The epilogue of warps that share the keys of a tile, where each has a part of every row: rows meet
// in shared memory, and go from there to the output or to a partial result. These are merged by
// whichever CTA brings the last piece of the tile.
#pragma once

#include "attnhub/ptx/convert.cuh"
#include "attnhub_fa2/destination.cuh"

namespace attnhub::fa2 {

template <class T>
ATTNHUB_DEVICE void store_four(T* to, const float (&values)[4]) {
  if constexpr (kIsSame<T, float>) {
    ptx::st_global(reinterpret_cast<FourFloats*>(to), bit_cast<FourFloats>(values));
  } else {
    const Vec<u32, 2> packed = {ptx::pack<T>(values[0], values[1]),
                                ptx::pack<T>(values[2], values[3])};
    ptx::st_global(reinterpret_cast<Vec<u32, 2>*>(to), packed);
  }
}

template <class Shape, class P>
struct KeysEpilogue : Destination<Shape, P> {
  using Format = typename Shape::Format;
  using From = Mainloop<Shape, P>;
  using Exchange = fa2::Exchange<Shape>;
  using Columns = LaneColumns<Shape::kDimVo>;
  using State = RowState<P>;
  using Base = Destination<Shape, P>;

  ATTNHUB_DEVICE explicit KeysEpilogue(const Base& base) : Base(base) {}

  ATTNHUB_DEVICE u32 exchange() const {
    return this->smem + ptx::offset_of(&SmemPlan<Shape>::exchange);
  }
  ATTNHUB_DEVICE u32 out_at(i32 row, i32 column) const {
    return exchange() + ptx::offset_of(&Exchange::out) +
           (row * Exchange::kPitch + column) * u32(sizeof(float));
  }
  ATTNHUB_DEVICE u32 max_at(i32 row) const {
    return exchange() + ptx::offset_of(&Exchange::max) + row * u32(sizeof(float));
  }
  ATTNHUB_DEVICE u32 sum_at(i32 row) const {
    return exchange() + ptx::offset_of(&Exchange::sum) + row * u32(sizeof(float));
  }

  // Each warp's rows, as the fragments of the mainloop hold them, to shared memory.
  ATTNHUB_DEVICE void collect(const From& from) const {
    const int lane = ptx::lane_idx();
#pragma unroll
    for (int m = 0; m < Shape::kTilesM; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const i32 row =
            ptx::warp_idx() * Shape::kWarpRows + m * 16 + Accumulator::row(lane, half * 2);
#pragma unroll
        for (int n = 0; n < From::kTilesD; n += 2) {
          const float(&left)[4] = from.out[m][n];
          const float(&right)[4] = from.out[m][n + 1];
          if constexpr (Format::kIsFp8) {
            ptx::st_shared(out_at(row, Format::channel(lane, n, 0)),
                           FourFloats{left[half * 2], right[half * 2], left[half * 2 + 1],
                                      right[half * 2 + 1]});
          } else {
            using Pair = Vec<float, 2>;
            ptx::st_shared(out_at(row, Format::channel(lane, n, 0)),
                           Pair{left[half * 2], left[half * 2 + 1]});
            ptx::st_shared(out_at(row, Format::channel(lane, n + 1, 0)),
                           Pair{right[half * 2], right[half * 2 + 1]});
          }
        }
        const float max = from.natural_max(m, half);
        if (lane % 4 == 0) {
          ptx::st_shared(max_at(row), max);
          ptx::st_shared(sum_at(row), from.sum_of(m, half));
        }
      }
    }
  }

  // A row of the tile, of what the warps summed over their keys.
  ATTNHUB_DEVICE State gather(i32 row) const {
    State merged;
#pragma unroll
    for (int w = 0; w < Shape::kWarpsN; ++w) {
      const i32 at = w * Shape::kBlockM + row;
      float values[Columns::kSize] = {};
      Columns::each([&](int column, int first) {
        const auto four = ptx::ld_shared<FourFloats>(out_at(at, column));
        for (int i = 0; i < 4; ++i) values[first + i] = four[i];
      });
      merged.add(values, ptx::ld_shared<float>(max_at(at)), ptx::ld_shared<float>(sum_at(at)));
    }
    merged.finish();
    return merged;
  }

  ATTNHUB_DEVICE void store(i32 row, const State& from) const {
    const QueryRow at = this->query(row);
    if (!at.is_valid) return;
    const RowEnd<P> end = this->end_of(at, from.lse);
    auto* to = this->out_row(at);
    Columns::each([&](int column, int first) {
      float four[4];
      for (int i = 0; i < 4; ++i) four[i] = end.element(from.o[first + i], column + i);
      store_four(to + column, four);
    });
    if (ptx::lane_idx() == 0) this->store_lse(end);
  }

  ATTNHUB_DEVICE void store_partial(i32 row, const State& from) const {
    const i32 slot = this->piece.slot(this->piece.piece_idx);
    Columns::each([&](int column, int first) {
      FourFloats four;
      for (int i = 0; i < 4; ++i) four[i] = from.o[first + i];
      ptx::st_global(reinterpret_cast<FourFloats*>(this->partial_out(slot, row) + column), four);
    });
    if (ptx::lane_idx() == 0) ptx::st_global(this->partial_lse(slot, row), from.lse);
  }

  ATTNHUB_DEVICE void merge(i32 row) const {
    constexpr int kInFlight = 8 / Columns::kSteps;
    const Piece& piece = this->piece;
    State merged;
    for (i32 first = 0; first < piece.num_pieces; first += kInFlight) {
      float parts[kInFlight][Columns::kSize];
      float lses[kInFlight], largest = kMinusInf;
#pragma unroll
      for (int i = 0; i < kInFlight; ++i) {
        lses[i] = kMinusInf;
        if (first + i >= piece.num_pieces) continue;
        const i32 slot = piece.slot(first + i);
        lses[i] = ptx::ld_global_l2(this->partial_lse(slot, row));
        Columns::each([&](int column, int begin) {
          const float* at = this->partial_out(slot, row) + column;
          const auto four = ptx::ld_global_l2(reinterpret_cast<const FourFloats*>(at));
          for (int j = 0; j < 4; ++j) parts[i][begin + j] = four[j];
        });
      }
#pragma unroll
      for (int i = 0; i < kInFlight; ++i) largest = fmaxf(largest, lses[i]);
      merged.raise(largest);
#pragma unroll
      for (int i = 0; i < kInFlight; ++i) merged.take(parts[i], lses[i]);
    }
    merged.finish();
    store(row, merged);
  }

  // Rows of the tile that are queries' come first.
  ATTNHUB_DEVICE i32 num_rows() const {
    const i32 tokens = this->share.section.tile_tokens;
    const i32 left = this->piece.request.qo_len - this->piece.tile * tokens;
    return min(left, tokens) * i32(this->share.group.divisor);
  }

  ATTNHUB_DEVICE void run(const From& from) const {
    constexpr int kWarps = Shape::kThreads / 32;
    ptx::sync_threads();  // other warps may still read what the exchange overlays
    collect(from);
    ptx::sync_threads();
    const i32 rows = num_rows();
    const bool is_whole = this->piece.is_whole();
    for (i32 row = ptx::warp_idx(); row < rows; row += kWarps) {
      const State done = gather(row);
      if (is_whole) {
        store(row, done);
      } else {
        store_partial(row, done);
      }
    }
    if (is_whole || !this->arrive()) return;
    for (i32 row = ptx::warp_idx(); row < rows; row += kWarps) merge(row);
  }
};

}  // namespace attnhub::fa2
