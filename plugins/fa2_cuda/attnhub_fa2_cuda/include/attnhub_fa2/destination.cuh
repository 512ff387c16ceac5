// Where rows of output and partial results lie, and how the pieces of a tile find each other: common
// to both epilogues.
#pragma once

#include "attnhub/ptx/atomic.cuh"
#include "attnhub/ptx/barrier.cuh"
#include "attnhub/ptx/memory.cuh"
#include "attnhub_fa2/mainloop.cuh"
#include "attnhub_fa2/query_tile.cuh"
#include "attnhub_fa2/row_state.cuh"
#include "attnhub_fa2/smem_plan.cuh"

namespace attnhub::fa2 {

using FourFloats = Vec<float, 4>;

template <class Shape, class P>
struct Destination {
  using Out = typename Shape::Output;

  const P& p;
  const Share& share;
  const Piece& piece;
  u32 smem;
  i32 group_idx, lane_of_worker;

  ATTNHUB_DEVICE QueryRow query(i32 row) const { return query_row(share, piece, group_idx, row); }
  ATTNHUB_DEVICE Out* out_row(const QueryRow& at) const {
    return p.out + i64(piece.request.qo_begin + at.qo_idx) * p.stride_out_token +
           at.head * p.stride_out_head;
  }
  ATTNHUB_DEVICE RowEnd<P> end_of(const QueryRow& at, float natural_lse) const {
    return {p, piece, at, group_idx / share.groups_per_kv, natural_lse};
  }
  ATTNHUB_DEVICE void store_lse(const RowEnd<P>& end) const {
    if (p.lse == nullptr || !end.at.is_valid) return;
    const i64 token = piece.request.qo_begin + end.at.qo_idx;
    ptx::st_global(p.lse + token * p.stride_lse_token + end.at.head, end.lse);
  }

  // Of the partial result in a slot.
  ATTNHUB_DEVICE i64 partial_row(i32 slot, i32 row) const {
    return (i64(slot) * share.num_lanes + lane_of_worker) * Shape::kBlockM + row;
  }
  ATTNHUB_DEVICE float* partial_out(i32 slot, i32 row) const {
    return share.partial_out + partial_row(slot, row) * Shape::kDimVo;
  }
  ATTNHUB_DEVICE float* partial_lse(i32 slot, i32 row) const {
    return share.partial_lse + partial_row(slot, row);
  }

  // Whether all other pieces of the tile are there, seen by every thread of the CTA.
  ATTNHUB_DEVICE bool arrive() const {
    const u32 flag = smem + ptx::offset_of(&SmemPlan<Shape>::is_last);
    ptx::sync_threads();
    if (threadIdx.x == 0) {
      i32* counter = share.schedule.counters + i64(piece.counter) * share.num_lanes + lane_of_worker;
      const bool is_last = ptx::atomic_add_acq_rel(counter, 1) == piece.num_pieces - 1;
      if (is_last) ptx::st_global(counter, 0);  // ready for the next launch
      ptx::st_shared(flag, i32(is_last));
    }
    ptx::sync_threads();
    return ptx::ld_shared<i32>(flag) != 0;
  }
};

}  // namespace attnhub::fa2
