// Moving 8x8 matrices of 16-bit elements between shared memory and the registers of a warp.
//
// ldmatrix: kCount 8x8 matrices of 16-bit elements from shared memory to a warp's registers.
// Lane 8 m + r gives the address of row r of matrix m, aligned to 16 bytes. Register m of lane l
// then holds elements (l / 4, 2 (l % 4)) and (l / 4, 2 (l % 4) + 1) of matrix m, or with
// kTransposed those of its transpose. All 32 lanes take part.
#pragma once

#include "attnhub/common/types.cuh"

namespace attnhub::ptx {

template <int kCount, bool kTransposed = false>
ATTNHUB_DEVICE void ldmatrix(u32 (&r)[kCount], u32 row_address) {
  static_assert(kCount == 1 || kCount == 2 || kCount == 4, "ldmatrix loads 1, 2 or 4 matrices");
#ifdef ATTNHUB_EMULATOR
  emulator::ldmatrix(r, kCount, row_address, kTransposed);
#else
  if constexpr (kCount == 1 && !kTransposed) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%0}, [%1];"
                 : "=r"(r[0])
                 : "r"(row_address));
  } else if constexpr (kCount == 1) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x1.trans.shared.b16 {%0}, [%1];"
                 : "=r"(r[0])
                 : "r"(row_address));
  } else if constexpr (kCount == 2 && !kTransposed) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
                 : "=r"(r[0]), "=r"(r[1])
                 : "r"(row_address));
  } else if constexpr (kCount == 2) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
                 : "=r"(r[0]), "=r"(r[1])
                 : "r"(row_address));
  } else if constexpr (!kTransposed) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(row_address));
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(row_address));
  }
#endif
}

// stmatrix (sm_90): the reverse, registers to shared memory.
template <int kCount, bool kTransposed = false>
ATTNHUB_DEVICE void stmatrix(u32 row_address, const u32 (&r)[kCount]) {
  static_assert(kCount == 2 || kCount == 4, "stmatrix stores 2 or 4 matrices here");
#ifdef ATTNHUB_EMULATOR
  emulator::stmatrix(row_address, r, kCount, kTransposed);
#else
  if constexpr (kCount == 2 && !kTransposed) {
    asm volatile("stmatrix.sync.aligned.m8n8.x2.shared.b16 [%0], {%1, %2};" ::"r"(row_address),
                 "r"(r[0]), "r"(r[1])
                 : "memory");
  } else if constexpr (kCount == 2) {
    asm volatile(
        "stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};" ::"r"(row_address),
        "r"(r[0]), "r"(r[1])
        : "memory");
  } else if constexpr (!kTransposed) {
    asm volatile(
        "stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row_address),
        "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
        : "memory");
  } else {
    asm volatile(
        "stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row_address),
        "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
        : "memory");
  }
#endif
}

// movmatrix: the transpose of one matrix that lies in registers as ldmatrix leaves it.
ATTNHUB_DEVICE u32 movmatrix(u32 r) {
#ifdef ATTNHUB_EMULATOR
  return emulator::movmatrix(r);
#else
  u32 transposed;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(transposed) : "r"(r));
  return transposed;
#endif
}

}  // namespace attnhub::ptx
