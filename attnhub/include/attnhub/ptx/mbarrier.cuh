// mbarrier (sm_90): a barrier in shared memory, 8 bytes at a multiple of 8, that also counts bytes
// of asynchronous copies. A phase ends when all its arrivals have come and no byte is outstanding;
// the next one begins by itself. Waiting names the parity of a phase: 0 for the first. A wait for
// parity 1 on a new mbarrier returns at once, which is how producers find all their slots empty.
#pragma once

#include "attnhub/common/types.cuh"

namespace attnhub::ptx {

// Every phase takes `num_arrivals` arrivals. Follow it by fence_mbarrier_init() and a barrier.
ATTNHUB_DEVICE void mbarrier_init(u32 mbarrier, u32 num_arrivals) {
#ifdef ATTNHUB_EMULATOR
  emulator::mbarrier_init(mbarrier, num_arrivals);
#else
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(mbarrier), "r"(num_arrivals)
               : "memory");
#endif
}

ATTNHUB_DEVICE void mbarrier_arrive(u32 mbarrier) {
#ifdef ATTNHUB_EMULATOR
  emulator::mbarrier_arrive(mbarrier, 0);
#else
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(mbarrier) : "memory");
#endif
}

// Arrives, and makes the phase wait for num_bytes of copies too.
ATTNHUB_DEVICE void mbarrier_arrive_expect_tx(u32 mbarrier, u32 num_bytes) {
#ifdef ATTNHUB_EMULATOR
  emulator::mbarrier_arrive(mbarrier, num_bytes);
#else
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(mbarrier),
               "r"(num_bytes)
               : "memory");
#endif
}

// Arrives when all cp.async of this thread so far are done. The mbarrier's count includes it.
ATTNHUB_DEVICE void mbarrier_arrive_after_cp_async(u32 mbarrier) {
#ifdef ATTNHUB_EMULATOR
  emulator::mbarrier_arrive_after_cp_async(mbarrier);
#else
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(mbarrier) : "memory");
#endif
}

// Waits until the phase of this parity has ended.
ATTNHUB_DEVICE void mbarrier_wait(u32 mbarrier, u32 parity) {
#ifdef ATTNHUB_EMULATOR
  emulator::mbarrier_wait(mbarrier, parity);
#else
  u32 is_over = 0;
  while (is_over == 0) {  // try_wait gives up after a time that the hardware chooses
    asm volatile(
        "{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; "
        "selp.u32 %0, 1, 0, p; }"
        : "=r"(is_over)
        : "r"(mbarrier), "r"(parity)
        : "memory");
  }
#endif
}

}  // namespace attnhub::ptx
