// The persistent kernel: each worker computes its share of the plan, piece by piece.
#pragma once

#include "attnhub_fa2/epilogue.cuh"
#include "attnhub_fa2/mainloop.cuh"

namespace attnhub::fa2 {

// Zeros to the rows of no request, with which batches of a CUDA graph are padded.
template <int kThreads, class P>
ATTNHUB_DEVICE void clear_padding(const P& p) {
  using Out = typename P::Format::Output;
  constexpr int kDim = P::Format::kDimVo;
  const i64 elements = i64(p.num_tokens) * p.num_qo_heads * kDim;
  i64 at = i64(ptx::ld_global(p.qo_end)) * p.num_qo_heads * kDim;
  at += i64(blockIdx.x) * kThreads + threadIdx.x;
  for (; at < elements; at += i64(gridDim.x) * kThreads) {
    const i64 row = at / kDim, token = row / p.num_qo_heads, head = row % p.num_qo_heads;
    const int channel = int(at % kDim);
    constexpr Out zero = {};
    ptx::st_global(p.out + token * p.stride_out_token + head * p.stride_out_head + channel, zero);
    if (p.lse != nullptr && channel == 0) {
      ptx::st_global(p.lse + token * p.stride_lse_token + head, kMinusInf);
    }
  }
}

// What this CTA has of a share. Grid: workers x lanes CTAs, or more, which have nothing; the lanes
// of a worker walk the same pieces for different heads.
template <class Shape, class P>
ATTNHUB_DEVICE void work_on(const P& p, const Share& share) {
  const i32 worker = blockIdx.x / share.num_lanes, lane_of_worker = blockIdx.x % share.num_lanes;
  if (worker >= share.section.num_workers) return;
  const u32 smem = ptx::dynamic_smem();
  WorkRange range(share.schedule, share.section, worker);
  for (Piece piece; range.next(piece);) {
    const i32 group_idx = piece.head * share.num_lanes + lane_of_worker;
    Mainloop<Shape, P> mainloop(p, share, piece, smem, group_idx);
    mainloop.run();
    finish_piece<Shape, P>({p, share, piece, smem, group_idx, lane_of_worker}, mainloop);
    ptx::sync_threads();  // the next piece overwrites what the epilogue read
  }
}

template <int kThreads, class P>
ATTNHUB_DEVICE void finish(const P& p) {
  ptx::grid_wait();  // without work too: who waits for this kernel waits for those ahead of it
  clear_padding<kThreads>(p);
}

template <class Shape, class P>
ATTNHUB_DEVICE void attention(const P& p) {
  ptx::grid_launch_dependents();
  work_on<Shape>(p, p.shares[0]);
  finish<Shape::kThreads>(p);
}

// Two tile shapes in one launch. NOTE: half of the CTAs begin with one share and half with the other.
// CTAs that an SM holds at the same time are half a grid apart, so that while one computes the other
// streams keys.
template <class First, class Second, class P>
ATTNHUB_DEVICE void attention(const P& p) {
  static_assert(First::kThreads == Second::kThreads, "a CTA serves both");
  ptx::grid_launch_dependents();
  const bool is_in_upper_half = blockIdx.x >= gridDim.x / 2;
  if (is_in_upper_half) work_on<Second>(p, p.shares[1]);
  work_on<First>(p, p.shares[0]);
  if (!is_in_upper_half) work_on<Second>(p, p.shares[1]);
  finish<First::kThreads>(p);
}

}  // namespace attnhub::fa2
