// Fences of sm_90 between kinds of access: the generic proxy (ordinary loads and stores, cp.async)
// and the async proxy (TMA, wgmma reading shared memory).
#pragma once

#include "attnhub/common/types.cuh"

namespace attnhub::ptx {

// Between writing shared memory by st_shared or cp_async and reading it by wgmma or tma_store.
// The threads that wrote call it, then a barrier tells the reader.
ATTNHUB_DEVICE void fence_proxy_async() {
#ifdef ATTNHUB_EMULATOR
  emulator::fence_proxy_async();
#else
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

// Between mbarrier_init and the first use of the mbarrier by TMA or by another CTA.
ATTNHUB_DEVICE void fence_mbarrier_init() {
#ifdef ATTNHUB_EMULATOR
  emulator::fence_mbarrier_init();
#else
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}

}  // namespace attnhub::ptx
