// The persistent kernel: each worker computes its share of the plan, piece by piece.
#pragma once

#include "attnhub_fa2/epilogue.cuh"
#include "attnhub_fa2/mainloop.cuh"

namespace attnhub::fa2 {

// Zeros to the rows of no request, with which batches of a CUDA graph are padded.
template <class Shape, class P>
ATTNHUB_DEVICE void clear_padding(const P& p) {
  constexpr typename Shape::Output zero = {};
  const i64 rows_end = i64(p.num_tokens) * p.num_qo_heads;
  i64 row = i64(ptx::ld_global(p.qo_end)) * p.num_qo_heads;
  row += (blockIdx.x * Shape::kThreads + threadIdx.x) / Shape::kChunks;
  for (; row < rows_end; row += i64(gridDim.x) * Shape::kRowsPerCopy) {
    const i64 token = row / p.num_qo_heads, head = row % p.num_qo_heads;
    auto* to = p.out + token * p.stride_out_token + head * p.stride_out_head;
    const int chunk = threadIdx.x % Shape::kChunks;
#pragma unroll
    for (int i = 0; i < Shape::kChunk; ++i) ptx::st_global(to + chunk * Shape::kChunk + i, zero);
    if (p.lse != nullptr && chunk == 0) {
      ptx::st_global(p.lse + token * p.stride_lse_token + head, kMinusInf);
    }
  }
}

// Grid: workers x lanes CTAs; the lanes of a worker walk the same pieces for different heads.
template <class Shape, class Variant>
ATTNHUB_DEVICE void attention(const Params<Shape, Variant>& p) {
  const i32 worker = blockIdx.x / p.num_lanes, lane_of_worker = blockIdx.x % p.num_lanes;
  const u32 smem = ptx::dynamic_smem();
  clear_padding<Shape>(p);
  WorkRange range(p.schedule, p.section, worker);
  for (Piece piece; range.next(piece);) {
    const i32 group_idx = piece.head * p.num_lanes + lane_of_worker;
    Mainloop<Shape, Variant> mainloop(p, piece, smem, group_idx);
    mainloop.run();
    Epilogue<Shape, Variant>{p, piece, smem, group_idx, lane_of_worker}.run(mainloop);
    ptx::sync_threads();  // the next piece overwrites what the epilogue read
  }
}

}  // namespace attnhub::fa2
