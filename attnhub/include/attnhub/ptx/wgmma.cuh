// wgmma (sm_90a): D[64, kN] += A[64, 16] B[16, kN] of 16-bit values in float32, by a warpgroup of
// 128 threads, asynchronously: fence, products, commit, wait. Operands lie in shared memory, where
// a descriptor names them; A may lie in registers, as mma_m16n8k16 has it, 16 rows a warp.
//
// Element (r, n) of D is d[n / 8 * 4 + r % 16 / 8 * 2 + n % 2] of lane r % 8 * 4 + n % 8 / 2 of
// warp r / 16. Until wgmma_wait says so, touch neither d nor the registers of A.
#pragma once

#include "attnhub/common/types.cuh"

namespace attnhub::ptx {

enum class Major { kK, kMn };  // which dimension of an operand is contiguous in shared memory

enum class SmemSwizzle : u32 { k128B = 1, k64B = 2, k32B = 3 };

// Names an operand in shared memory. With K contiguous, rows are 128 (64, 32) bytes and
// `stride_bytes` is from 8 rows to the next 8; `leading_bytes` is not used. With M or N contiguous,
// rows along it are 128 (64, 32) bytes, `stride_bytes` is from 8 of K to the next 8 and
// `leading_bytes` from 64 (32, 16) of M or N to the next.
ATTNHUB_DEVICE u64 smem_descriptor(u32 address, u32 leading_bytes, u32 stride_bytes,
                                   SmemSwizzle swizzle) {
  return u64((address & 0x3ffff) >> 4) | u64(leading_bytes >> 4) << 16 |
         u64(stride_bytes >> 4) << 32 | u64(swizzle) << 62;
}

// Before the first product, and whenever registers that products use were written in between.
ATTNHUB_DEVICE void wgmma_fence() {
#ifndef ATTNHUB_EMULATOR
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#endif
}

ATTNHUB_DEVICE void wgmma_commit() {
#ifdef ATTNHUB_EMULATOR
  emulator::wgmma_commit();
#else
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#endif
}

// Waits until at most kPending groups of products are unfinished.
template <int kPending>
ATTNHUB_DEVICE void wgmma_wait() {
#ifdef ATTNHUB_EMULATOR
  emulator::wgmma_wait(kPending);
#else
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
#endif
}

// NOTE: after wgmma_wait, so that the compiler reads no register of d before the wait.
template <int kCount>
ATTNHUB_DEVICE void keep_after_wait(float (&d)[kCount]) {
#ifndef ATTNHUB_EMULATOR
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(d[i])::"memory");
#endif
}

}  // namespace attnhub::ptx

#include "attnhub/ptx/wgmma_products.cuh"
