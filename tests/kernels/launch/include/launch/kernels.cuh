// One small kernel for each thing that a launch can carry.
#pragma once

#include "attnhub/ptx/barrier.cuh"
#include "attnhub/ptx/cluster.cuh"
#include "attnhub/ptx/fence.cuh"
#include "attnhub/ptx/grid.cuh"
#include "attnhub/ptx/mbarrier.cuh"
#include "attnhub/ptx/memory.cuh"
#include "attnhub/ptx/tma.cuh"

namespace launch {

using namespace attnhub;

struct Range {
  bool is_negated;
  i64 begin, end;
};

struct ScaleParams {
  const float* x;  // [n]
  Range range;     // of the elements to scale
  float* y;        // [n]
  double factor;
  u32 n;
};

// y = factor * x within the range, x elsewhere. Reads what the kernel before it wrote.
ATTNHUB_DEVICE void scale(const ScaleParams& p) {
  ptx::grid_wait();
  const i64 i = i64(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < p.n) {
    const float x = ptx::ld_global(p.x + i);
    const bool is_inside = p.range.begin <= i && i < p.range.end;
    const float factor = p.range.is_negated ? -float(p.factor) : float(p.factor);
    ptx::st_global(p.y + i, is_inside ? factor * x : x);
  }
  ptx::grid_launch_dependents();
}

struct PassParams {
  const float* x;  // [num_ctas, blockDim.x]
  float* y;        // [num_ctas, blockDim.x]
};

// Each CTA writes what its right neighbour in the cluster of kCtas read.
template <int kCtas>
ATTNHUB_DEVICE void pass_left(const PassParams& p) {
  const u32 i = blockIdx.x * blockDim.x + threadIdx.x;
  const u32 mine = ptx::dynamic_smem() + threadIdx.x * 4;
  ptx::st_shared(mine, ptx::ld_global(p.x + i));
  ptx::cluster_sync();
  const u32 right = (ptx::cluster_rank() + 1) % kCtas;
  ptx::st_global(p.y + i, ptx::ld_cluster<float>(ptx::cluster_address(mine, right)));
  ptx::cluster_sync();
}

struct CopyParams {
  float scale;
  ptx::TensorMap x, y;  // [rows, columns] of Half, in boxes [8, 64]
};

// y = x, one box for each CTA, through shared memory. (0, 0) is `scale`, to see it beside the maps.
ATTNHUB_DEVICE void copy_boxes(const CopyParams& p) {
  constexpr u32 kBytes = 8 * 64 * 2;
  const u32 box = ptx::dynamic_smem(), full = box + kBytes;
  const ptx::Coordinates at{int(blockIdx.x) * 64, int(blockIdx.y) * 8};
  if (threadIdx.x == 0) {
    ptx::mbarrier_init(full, 1);
    ptx::fence_mbarrier_init();
    ptx::mbarrier_arrive_expect_tx(full, kBytes);
    ptx::tma_load(box, p.x, full, at);
  }
  ptx::sync_threads();
  ptx::mbarrier_wait(full, 0);
  if (threadIdx.x == 0) {
    if (blockIdx.x == 0 && blockIdx.y == 0) ptx::st_shared(box, u16(p.scale));
    ptx::fence_proxy_async();
    ptx::tma_store(p.y, box, at);
    ptx::bulk_commit();
    ptx::bulk_wait<0>();
  }
}

}  // namespace launch
