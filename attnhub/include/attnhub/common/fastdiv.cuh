// Division by a number that is known when a kernel is launched: a page size, a GQA group.
//
// Granlund and Montgomery, "Division by Invariant Integers using Multiplication" (1994). The host
// makes the constants: attnhub.kernels.fastdiv.fast_divisor.
#pragma once

#include "attnhub/common/types.cuh"

namespace attnhub {

// 1 <= divisor < 2^31, and n < 2^31 to divide: any length or index in int32 that is not negative.
struct FastDiv {
  u32 divisor, multiplier, shift;

  ATTNHUB_HOST_DEVICE u32 divide(u32 n) const {
    return (u32(u64(n) * multiplier >> 32) + n) >> shift;
  }
};

}  // namespace attnhub
