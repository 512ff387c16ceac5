// mma.sync m16n8k32 (sm_89): a warp's tensor-core product of FP8 values, summed in float32.
//
// NOTE: sm_90 makes two 16-bit products of it, so there it saves registers and no time.
//
// With g = lane / 4 and c = 4 (lane % 4), a lane holds four neighbouring columns a register:
//   a[0..3]  A[16, 32] at (g, c), (g + 8, c), (g, c + 16), (g + 8, c + 16)
//   b0, b1   B[32, 8]  at (c .. c + 3, g), then (c + 16 .. c + 19, g)
//   d[0..3]  D[16, 8]  as of mma_m16n8k16
#pragma once

#include "attnhub/common/types.cuh"

namespace attnhub::ptx {

// d += A B, where F is E4m3 or E5m2. All 32 lanes take part.
template <class F>
ATTNHUB_DEVICE void mma_m16n8k32(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  static_assert(kIsSame<F, E4m3> || kIsSame<F, E5m2>, "F: E4m3 or E5m2");
#ifdef ATTNHUB_EMULATOR
  emulator::mma_m16n8k32(d, a, b0, b1, kIsSame<F, E5m2>);
#else
  if constexpr (kIsSame<F, E4m3>) {
    asm volatile(
        "mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k32.row.col.f32.e5m2.e5m2.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
#endif
}

}  // namespace attnhub::ptx
