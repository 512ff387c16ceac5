// Barriers of a CTA and of a warp, each of which also orders memory accesses.
#pragma once

#include "attnhub/common/types.cuh"

namespace attnhub::ptx {

// All threads of the CTA that have not exited.
ATTNHUB_DEVICE void sync_threads() {
#ifdef ATTNHUB_EMULATOR
  emulator::sync_threads();
#else
  __syncthreads();
#endif
}

ATTNHUB_DEVICE void sync_warp(u32 mask = 0xffffffffu) {
#ifdef ATTNHUB_EMULATOR
  emulator::sync_warp(mask);
#else
  __syncwarp(mask);
#endif
}

// Named barrier: waits until num_threads threads (a multiple of 32) have come, by sync or arrive.
// Ids are 1 to 15, as 0 is sync_threads().
ATTNHUB_DEVICE void named_barrier_sync(int id, int num_threads) {
#ifdef ATTNHUB_EMULATOR
  emulator::named_barrier(id, num_threads, true);
#else
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(num_threads) : "memory");
#endif
}

// The same without the wait.
ATTNHUB_DEVICE void named_barrier_arrive(int id, int num_threads) {
#ifdef ATTNHUB_EMULATOR
  emulator::named_barrier(id, num_threads, false);
#else
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(num_threads) : "memory");
#endif
}

}  // namespace attnhub::ptx
