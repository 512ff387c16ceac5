// The epilogue of warps that have whole rows: what a warp summed stays in its registers. Partial
// results lie as the fragments do, so that every thread reads back what it, or its like in another
// CTA, wrote, 16 bytes at a time; whichever CTA brings the last piece of a tile merges all of them.
#pragma once

#include "attnhub/ptx/convert.cuh"
#include "attnhub_fa2/destination.cuh"

namespace attnhub::fa2 {

template <class Shape, class P>
struct RowsEpilogue : Destination<Shape, P> {
  using Out = typename Shape::Output;
  using Format = typename Shape::Format;
  using Variant = typename P::Variant;
  using From = Mainloop<Shape, P>;
  using Tile = typename Shape::TileOut;
  using Base = Destination<Shape, P>;
  static constexpr int kTilesM = From::kTilesM, kTilesD = From::kTilesD;

  From& from;
  float lse[kTilesM][2];  // of this lane's rows, natural and without a sink

  ATTNHUB_DEVICE RowsEpilogue(const Base& base, From& mainloop) : Base(base), from(mainloop) {}

  // Divides what was summed by its weights. NOTE: rows without a key become 0, and not 0 times what
  // was summed, which is NaN where a value is.
  ATTNHUB_DEVICE void normalise() {
#pragma unroll
    for (int m = 0; m < kTilesM; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float inverse = 1.0f;
        lse[m][half] = from.natural_max(m, half);
        const bool has_keys = lse[m][half] != kMinusInf;
        if constexpr (Variant::kSoftmax) {
          const float sum = from.sum_of(m, half);
          if (sum != 0.0f) lse[m][half] += ptx::lg2(sum) * kLn2;
          inverse = sum == 0.0f ? 0.0f : ptx::rcp(sum);
        }
        scale_row(m, half, inverse, has_keys);
      }
    }
  }
  ATTNHUB_DEVICE void scale_row(int m, int half, float factor, bool has_keys) {
#pragma unroll
    for (int n = 0; n < kTilesD; ++n) {
#pragma unroll
      for (int e = half * 2; e < half * 2 + 2; ++e) {
        from.out[m][n][e] = has_keys ? from.out[m][n][e] * factor : 0.0f;
      }
    }
  }

  ATTNHUB_DEVICE FourFloats* partial(i32 slot, int m, int n) const {
    auto* all = reinterpret_cast<FourFloats*>(this->partial_out(slot, 0));
    return all + (m * kTilesD + n) * Shape::kThreads + threadIdx.x;
  }
  ATTNHUB_DEVICE void store_partial() const {
    const i32 slot = this->piece.slot(this->piece.piece_idx);
#pragma unroll
    for (int m = 0; m < kTilesM; ++m) {
#pragma unroll
      for (int n = 0; n < kTilesD; ++n) {
        ptx::st_global(partial(slot, m, n), bit_cast<FourFloats>(from.out[m][n]));
      }
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        if (ptx::lane_idx() % 4 != 0) continue;
        ptx::st_global(this->partial_lse(slot, from.row_of(m, half)), lse[m][half]);
      }
    }
  }

  // All pieces of the tile, in their order whoever merges them, in the place of this one.
  ATTNHUB_DEVICE void merge() {
#pragma unroll
    for (int m = 0; m < kTilesM; ++m) {
#pragma unroll
      for (int n = 0; n < kTilesD; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) from.out[m][n][e] = 0.0f;
      }
      MergeWeights weights[2];
      for (i32 i = 0; i < this->piece.num_pieces; ++i) {
        add_piece(this->piece.slot(i), m, weights);
      }
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        lse[m][half] = weights[half].merged_lse();
        if constexpr (Variant::kSoftmax) scale_row(m, half, weights[half].inverse(), true);
      }
    }
  }
  ATTNHUB_DEVICE void add_piece(i32 slot, int m, MergeWeights (&weights)[2]) {
    float kept[2], added[2];
    bool has_keys[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float its = ptx::ld_global_l2(this->partial_lse(slot, from.row_of(m, half)));
      has_keys[half] = its != kMinusInf;
      weights[half].add(its, kept[half], added[half]);
    }
#pragma unroll
    for (int n = 0; n < kTilesD; ++n) {
      const auto four = ptx::ld_global_l2(partial(slot, m, n));
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const float before = from.out[m][n][e] * kept[e / 2];
        const float sum = before + added[e / 2] * four[e];
        from.out[m][n][e] = has_keys[e / 2] ? sum : before;  // 0 x NaN is NaN
      }
    }
  }

  ATTNHUB_DEVICE void store() const {
    if constexpr (sizeof(Out) == sizeof(typename Shape::Element)) {
      store_by_rows();
    } else {
      each_pair([&](const RowEnd<P>& end, int, int n, const float(&values)[2][2]) {
        if (end.at.is_valid) store_floats(this->out_row(end.at), n, values);
      });
    }
  }

  // Calls visit(end of the row, row, n, values of n8 tiles n and n + 1) for all that this lane holds.
  template <class Visit>
  ATTNHUB_DEVICE void each_pair(Visit visit) const {
    const int lane = ptx::lane_idx();
#pragma unroll
    for (int m = 0; m < kTilesM; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = from.row_of(m, half);
        const RowEnd<P> end = this->end_of(this->query(row), lse[m][half]);
        if (lane % 4 == 0) this->store_lse(end);  // four lanes hold the row
#pragma unroll
        for (int n = 0; n < kTilesD; n += 2) {
          float values[2][2];
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const float value = from.out[m][n + i / 2][half * 2 + i % 2];
            values[i / 2][i % 2] = end.element(value, Format::channel(lane, n + i / 2, i % 2));
          }
          visit(end, row, n, values);
        }
      }
    }
  }

  static ATTNHUB_DEVICE void store_floats(float* row, int n, const float (&values)[2][2]) {
    const int lane = ptx::lane_idx();
    if constexpr (Format::kIsFp8) {
      ptx::st_global(reinterpret_cast<FourFloats*>(row + Format::channel(lane, n, 0)),
                     FourFloats{values[0][0], values[1][0], values[0][1], values[1][1]});
    } else {
      using Pair = Vec<float, 2>;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        ptx::st_global(reinterpret_cast<Pair*>(row + Format::channel(lane, n + i, 0)),
                       bit_cast<Pair>(values[i]));
      }
    }
  }

  // Each warp turns its fragments into rows where its queries were, and these leave 16 bytes at a
  // time.
  ATTNHUB_DEVICE void store_by_rows() const {
    constexpr int kRowsOfWarp = 32 / Tile::kLanes;
    const int lane = ptx::lane_idx();
    const u32 tile = from.operand(&Operands<Shape>::q);
    ptx::sync_warp();  // all lanes have read the queries
    each_pair([&](const RowEnd<P>&, int row, int n, const float(&values)[2][2]) {
      if constexpr (Format::kIsFp8) {
        const Vec<u32, 2> four = {ptx::pack<Out>(values[0][0], values[1][0]),
                                  ptx::pack<Out>(values[0][1], values[1][1])};
        ptx::st_shared(tile + Tile::offset(row, n + lane % 4 / 2) + lane % 2 * 8, four);
      } else {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          ptx::st_shared(tile + Tile::offset(row, n + i) + lane % 4 * 4,
                         ptx::pack<Out>(values[i][0], values[i][1]));
        }
      }
    });
    ptx::sync_warp();
#pragma unroll
    for (int i = 0; i < Shape::kWarpRows / kRowsOfWarp; ++i) {
      const int row = from.warp_row() + i * kRowsOfWarp + lane / Tile::kLanes;
      const QueryRow at = this->query(row);
      if (!at.is_valid) continue;
      const u32 from_shared = tile + Tile::offset(row, lane % Tile::kLanes);
      auto* to = reinterpret_cast<Vec<u32, 4>*>(this->out_row(at));
      Tile::each_chunk([&](int chunk, u32 offset) {
        ptx::st_global(to + chunk, ptx::ld_shared<Vec<u32, 4>>(from_shared + offset));
      });
    }
  }

  ATTNHUB_DEVICE void run() {
    normalise();
    if (!this->piece.is_whole()) {
      store_partial();
      if (!this->arrive()) return;
      merge();
    }
    store();
  }
};

}  // namespace attnhub::fa2
