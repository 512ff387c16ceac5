// Who the calling thread is. threadIdx, blockIdx, blockDim and gridDim are CUDA's own.
#pragma once

#include "attnhub/common/types.cuh"

namespace attnhub::ptx {

constexpr int kWarpSize = 32;
constexpr int kWarpgroupSize = 128;

ATTNHUB_DEVICE int lane_idx() { return int(threadIdx.x) & (kWarpSize - 1); }
ATTNHUB_DEVICE int warp_idx() { return int(threadIdx.x) / kWarpSize; }
ATTNHUB_DEVICE int num_warps() { return int(blockDim.x) / kWarpSize; }

// NOTE: a warp index read from lane 0 is known to be uniform, so the compiler keeps it, and what
// follows from it, in uniform registers.
ATTNHUB_DEVICE int uniform_warp_idx() {
#ifdef ATTNHUB_EMULATOR
  return warp_idx();
#else
  return __shfl_sync(0xffffffffu, warp_idx(), 0);
#endif
}

}  // namespace attnhub::ptx
