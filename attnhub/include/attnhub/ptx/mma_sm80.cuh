// mma.sync m16n8k16: a warp's tensor-core product of 16-bit values, summed in float32.
//
// With g = lane / 4 and c = 2 (lane % 4), a lane holds two neighbouring columns a register:
//   a[0..3]  A[16, 16] at (g, c), (g + 8, c), (g, c + 8), (g + 8, c + 8)
//   b0, b1   B[16, 8]  at (c, g) and (c + 1, g), then (c + 8, g) and (c + 9, g)
//   d[0..3]  D[16, 8]  at (g, c), (g, c + 1), (g + 8, c), (g + 8, c + 1)
#pragma once

#include "attnhub/common/types.cuh"

namespace attnhub::ptx {

// d += A B, where T is Half or Bf16. All 32 lanes take part.
template <class T>
ATTNHUB_DEVICE void mma_m16n8k16(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  static_assert(kIsSame<T, Half> || kIsSame<T, Bf16>, "T: Half or Bf16");
#ifdef ATTNHUB_EMULATOR
  emulator::mma_m16n8k16(d, a, b0, b1, kIsSame<T, Bf16>);
#else
  if constexpr (kIsSame<T, Half>) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
#endif
}

}  // namespace attnhub::ptx
