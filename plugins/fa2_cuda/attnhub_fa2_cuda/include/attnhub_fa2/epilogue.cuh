// From what the warps summed to rows of the output, or of a partial result that is merged with the
// other pieces of its tile by whichever CTA brings the last of them.
#pragma once

#include "attnhub/attention/state.cuh"
#include "attnhub/ptx/atomic.cuh"
#include "attnhub/ptx/barrier.cuh"
#include "attnhub/ptx/convert.cuh"
#include "attnhub/ptx/math.cuh"
#include "attnhub_fa2/mainloop.cuh"
#include "attnhub_fa2/query_tile.cuh"
#include "attnhub_fa2/smem_plan.cuh"

namespace attnhub::fa2 {

// A lane's share of a row: a warp holds a row.
using RowPart = Vec<float, 4>;
using MergedRow = MergedState<4>;

template <class T>
ATTNHUB_DEVICE void store_four(T* to, const float (&values)[4]) {
  if constexpr (kIsSame<T, float>) {
    ptx::st_global(reinterpret_cast<RowPart*>(to), bit_cast<RowPart>(values));
  } else {
    const Vec<u32, 2> packed = {ptx::pack<T>(values[0], values[1]),
                                ptx::pack<T>(values[2], values[3])};
    ptx::st_global(reinterpret_cast<Vec<u32, 2>*>(to), packed);
  }
}

template <class Shape, class Variant>
struct Epilogue {
  using Out = typename Shape::Output;
  using P = Params<Shape, Variant>;
  using Plan = SmemPlan<Shape>;
  using Exchange = fa2::Exchange<Shape>;
  static_assert(Shape::kHeadDim == 4 * 32, "a lane of a warp takes four columns of a row");

  const P& p;
  const Piece& piece;
  u32 smem;
  i32 group_idx, lane_of_worker;

  ATTNHUB_DEVICE u32 exchange() const { return smem + ptx::offset_of(&Plan::exchange); }
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

  // The maximum that a row's sum is relative to; -inf says that it saw no key. NOTE: the sum of a row
  // of NaN is NaN while its maximum, which fmaxf takes, may be -inf.
  static ATTNHUB_DEVICE float natural_max(const Mainloop<Shape, Variant>& from, int m, int half) {
    const float max = from.softmax[m].max[half], sum = from.softmax[m].sum[half];
    return sum == 0.0f ? kMinusInf : (max == kMinusInf ? sum : max * from.softmax_scale());
  }

  // Each warp's rows, as the fragments of the mainloop hold them, to shared memory.
  ATTNHUB_DEVICE void collect(const Mainloop<Shape, Variant>& from) const {
    const int lane = ptx::lane_idx();
#pragma unroll
    for (int m = 0; m < Shape::kTilesM; ++m) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const i32 row = ptx::warp_idx() * Shape::kWarpRows + m * 16 + Accumulator::row(lane, i * 2);
#pragma unroll
        for (int n = 0; n < from.kTilesD; ++n) {
          const Vec<float, 2> pair = {from.out[m][n][i * 2], from.out[m][n][i * 2 + 1]};
          ptx::st_shared(out_at(row, Accumulator::column(lane, n * 4)), pair);
        }
        if (lane % 4 == 0) {
          ptx::st_shared(max_at(row), natural_max(from, m, i));
          ptx::st_shared(sum_at(row), from.softmax[m].sum[i]);
        }
      }
    }
  }

  // A row of the tile, of what the warps summed over their keys.
  ATTNHUB_DEVICE MergedRow gather(i32 row) const {
    MergedRow merged;
#pragma unroll
    for (int w = 0; w < Shape::kWarpsN; ++w) {
      const i32 at = w * Shape::kBlockM + row;
      merged.add(ptx::ld_shared<RowPart>(out_at(at, ptx::lane_idx() * 4)),
                 ptx::ld_shared<float>(max_at(at)), ptx::ld_shared<float>(sum_at(at)));
    }
    merged.normalise();
    return merged;
  }

  ATTNHUB_DEVICE Out* out_row(const QueryRow& at) const {
    return p.out + i64(piece.request.qo_begin + at.qo_idx) * p.stride_out_token +
           at.head * p.stride_out_head;
  }
  ATTNHUB_DEVICE float* lse_at(const QueryRow& at) const {
    return p.lse + i64(piece.request.qo_begin + at.qo_idx) * p.stride_lse_token + at.head;
  }

  ATTNHUB_DEVICE void store(i32 row, const MergedRow& from) const {
    const QueryRow at = query_row(p, piece, group_idx, row);
    if (!at.is_valid) return;
    const float scale = p.scale_v * p.scales_v.of(group_idx / p.groups_per_kv);
    float scaled[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) scaled[i] = from.o[i] * scale;
    store_four(out_row(at) + ptx::lane_idx() * 4, scaled);
    if (p.lse != nullptr && ptx::lane_idx() == 0) ptx::st_global(lse_at(at), from.lse);
  }

  ATTNHUB_DEVICE i64 partial_row(i32 slot, i32 row) const {
    return (i64(slot) * p.num_lanes + lane_of_worker) * Shape::kBlockM + row;
  }
  ATTNHUB_DEVICE RowPart* partial_out(i64 row) const {
    return reinterpret_cast<RowPart*>(p.partial_out + row * Shape::kHeadDim) + ptx::lane_idx();
  }

  ATTNHUB_DEVICE void store_partial(i32 row, const MergedRow& from) const {
    const i64 at = partial_row(piece.slot(piece.piece_idx), row);
    ptx::st_global(partial_out(at), bit_cast<RowPart>(from.o));
    if (ptx::lane_idx() == 0) ptx::st_global(p.partial_lse + at, from.lse);
  }

  // Whether all other pieces of the tile are there, seen by every thread of the CTA.
  ATTNHUB_DEVICE bool arrive() const {
    const u32 flag = smem + ptx::offset_of(&Plan::is_last);
    ptx::sync_threads();
    if (threadIdx.x == 0) {
      i32* counter = p.schedule.counters + i64(piece.counter) * p.num_lanes + lane_of_worker;
      const bool is_last = ptx::atomic_add_acq_rel(counter, 1) == piece.num_pieces - 1;
      if (is_last) ptx::st_global(counter, 0);  // ready for the next launch
      ptx::st_shared(flag, i32(is_last));
    }
    ptx::sync_threads();
    return ptx::ld_shared<i32>(flag) != 0;
  }

  ATTNHUB_DEVICE void merge(i32 row) const {
    constexpr int kInFlight = Shape::kWarpsN > 1 ? 8 : 2;
    MergedRow merged;
    for (i32 first = 0; first < piece.num_pieces; first += kInFlight) {
      RowPart parts[kInFlight];
      float lses[kInFlight], largest = kMinusInf;
#pragma unroll
      for (int i = 0; i < kInFlight; ++i) {
        lses[i] = kMinusInf;
        if (first + i >= piece.num_pieces) continue;
        const i64 at = partial_row(piece.slot(first + i), row);
        lses[i] = ptx::ld_global_l2(p.partial_lse + at);
        parts[i] = ptx::ld_global_l2(partial_out(at));
      }
#pragma unroll
      for (int i = 0; i < kInFlight; ++i) largest = fmaxf(largest, lses[i]);
      merged.raise(largest);
#pragma unroll
      for (int i = 0; i < kInFlight; ++i) merged.take(parts[i], lses[i]);
    }
    merged.normalise();
    store(row, merged);
  }

  // Rows of the tile that are queries' come first.
  ATTNHUB_DEVICE i32 num_rows() const {
    const i32 left = piece.request.qo_len - piece.tile * p.section.tile_tokens;
    return min(left, p.section.tile_tokens) * i32(p.group.divisor);
  }

  // A whole tile whose rows no other warp has a share of, from registers: each warp turns its
  // fragments into rows where its queries were.
  ATTNHUB_DEVICE void store_from_registers(const Mainloop<Shape, Variant>& from) const {
    using Tile = typename Shape::TileQ;
    const int lane = ptx::lane_idx(), warp_row = from.warp_row();
    const u32 tile = from.operand(&Operands<Shape>::q);
    const float scale = p.scale_v * p.scales_v.of(group_idx / p.groups_per_kv);
    ptx::sync_warp();  // all lanes have read the queries
#pragma unroll
    for (int m = 0; m < Shape::kTilesM; ++m) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int row = from.row_of(m, i);
        const float sum = from.softmax[m].sum[i];
        const float factor = sum == 0.0f ? 0.0f : scale * ptx::rcp(sum);
        store_lse(row, natural_max(from, m, i) + (sum == 0.0f ? 0.0f : ptx::lg2(sum) * kLn2));
#pragma unroll
        for (int n = 0; n < from.kTilesD; ++n) {
          const u32 pair = ptx::pack<Out>(from.out[m][n][i * 2] * factor,
                                          from.out[m][n][i * 2 + 1] * factor);
          ptx::st_shared(tile + Tile::offset(row, n) + lane % 4 * 4, pair);
        }
      }
    }
    ptx::sync_warp();
#pragma unroll
    for (int i = 0; i < Shape::kWarpRows * Shape::kChunks / 32; ++i) {
      const int row = warp_row + (i * 32 + lane) / Shape::kChunks, chunk = lane % Shape::kChunks;
      const QueryRow at = query_row(p, piece, group_idx, row);
      if (!at.is_valid) continue;
      const auto values = ptx::ld_shared<Vec<u32, 4>>(tile + Tile::offset(row, chunk));
      ptx::st_global(reinterpret_cast<Vec<u32, 4>*>(out_row(at)) + chunk, values);
    }
  }

  // NOTE: four lanes hold the row, and one of them writes.
  ATTNHUB_DEVICE void store_lse(int row, float lse) const {
    if (p.lse == nullptr || ptx::lane_idx() % 4 != 0) return;
    const QueryRow at = query_row(p, piece, group_idx, row);
    if (at.is_valid) ptx::st_global(lse_at(at), lse);
  }

  ATTNHUB_DEVICE void run(const Mainloop<Shape, Variant>& from) const {
    constexpr int kWarps = Shape::kThreads / 32;
    if constexpr (Shape::kWarpsN == 1 && sizeof(Out) == sizeof(typename Shape::Element)) {
      if (piece.is_whole()) {
        store_from_registers(from);
        return;
      }
    }
    ptx::sync_threads();  // other warps may still read what the exchange overlays
    collect(from);
    ptx::sync_threads();
    const i32 rows = num_rows();
    for (i32 row = ptx::warp_idx(); row < rows; row += kWarps) {
      const MergedRow done = gather(row);
      if (piece.is_whole()) {
        store(row, done);
      } else {
        store_partial(row, done);
      }
    }
    if (piece.is_whole() || !arrive()) return;
    for (i32 row = ptx::warp_idx(); row < rows; row += kWarps) merge(row);
  }
};

}  // namespace attnhub::fa2
