// Atomics on global memory that schedulers and fused merges need. Scope: the device.
#pragma once

#include "attnhub/common/types.cuh"

namespace attnhub::ptx {

// Adds and returns the value before. Orders nothing else.
ATTNHUB_DEVICE i32 atomic_add(i32* address, i32 value) {
#ifdef ATTNHUB_EMULATOR
  return emulator::atomic_add(address, value);
#else
  return atomicAdd(address, value);
#endif
}

// Adds after everything this thread has written or seen, and before everything it reads next:
// the last of several CTAs to come may read what the others wrote.
ATTNHUB_DEVICE i32 atomic_add_acq_rel(i32* address, i32 value) {
#ifdef ATTNHUB_EMULATOR
  return emulator::atomic_add(address, value);
#else
  i32 before;
  asm volatile("atom.acq_rel.gpu.global.add.s32 %0, [%1], %2;"
               : "=r"(before)
               : "l"(address), "r"(value)
               : "memory");
  return before;
#endif
}

ATTNHUB_DEVICE i32 atomic_max(i32* address, i32 value) {
#ifdef ATTNHUB_EMULATOR
  return emulator::atomic_max(address, value);
#else
  return atomicMax(address, value);
#endif
}

// Stores `value` if the word equals `expected`; returns the value before.
ATTNHUB_DEVICE i32 atomic_cas(i32* address, i32 expected, i32 value) {
#ifdef ATTNHUB_EMULATOR
  return emulator::atomic_cas(address, expected, value);
#else
  return atomicCAS(address, expected, value);
#endif
}

// Reads a flag; what its writer stored before st_release may be read afterwards.
ATTNHUB_DEVICE i32 ld_acquire(const i32* address) {
#ifdef ATTNHUB_EMULATOR
  return emulator::ld_acquire(address);
#else
  i32 value;
  asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(value) : "l"(address) : "memory");
  return value;
#endif
}

ATTNHUB_DEVICE void st_release(i32* address, i32 value) {
#ifdef ATTNHUB_EMULATOR
  emulator::st_release(address, value);
#else
  asm volatile("st.release.gpu.global.s32 [%0], %1;" ::"l"(address), "r"(value) : "memory");
#endif
}

}  // namespace attnhub::ptx
