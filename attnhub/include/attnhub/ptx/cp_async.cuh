// cp.async: copies from global to shared memory that pass the registers by (sm_80 and later).
// A copy's bytes may be read after wait<N>() by the thread that issued it, and by others after a
// barrier that follows.
#pragma once

#include "attnhub/common/types.cuh"

namespace attnhub::ptx {

// Copies kBytes (4, 8 or 16), both sides aligned to it. With is_valid false the source is not read
// and zeros are written.
template <int kBytes>
ATTNHUB_DEVICE void cp_async(u32 to_shared, const void* from_global, bool is_valid = true) {
  static_assert(kBytes == 4 || kBytes == 8 || kBytes == 16, "cp.async moves 4, 8 or 16 bytes");
#ifdef ATTNHUB_EMULATOR
  emulator::cp_async(to_shared, from_global, kBytes, is_valid);
#else
  const u32 num_bytes = is_valid ? kBytes : 0;
  if constexpr (kBytes == 16) {  // only this width may bypass L1
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to_shared),
                 "l"(from_global), "r"(num_bytes)
                 : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(to_shared), "l"(from_global),
                 "n"(kBytes), "r"(num_bytes)
                 : "memory");
  }
#endif
}

// Closes a group of the copies issued since the last commit; an empty group counts too.
ATTNHUB_DEVICE void cp_async_commit() {
#ifdef ATTNHUB_EMULATOR
  emulator::cp_async_commit();
#else
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

// Waits until at most kPending of this thread's groups are unfinished.
template <int kPending>
ATTNHUB_DEVICE void cp_async_wait() {
#ifdef ATTNHUB_EMULATOR
  emulator::cp_async_wait(kPending);
#else
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
#endif
}

}  // namespace attnhub::ptx
