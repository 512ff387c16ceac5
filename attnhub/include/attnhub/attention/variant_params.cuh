// Run-time parameters of a variant: what attnhub/kernels/variant.py packs.
#pragma once

#include "attnhub/common/types.cuh"
#include "attnhub/ptx/convert.cuh"
#include "attnhub/ptx/memory.cuh"

namespace attnhub {

// An element of a parameter as what mods compute with: float, i32 or bool.
ATTNHUB_DEVICE float as_operand(float x) { return x; }
ATTNHUB_DEVICE float as_operand(Half x) { return ptx::to_float(x); }
ATTNHUB_DEVICE float as_operand(Bf16 x) { return ptx::to_float(x); }
ATTNHUB_DEVICE i32 as_operand(i32 x) { return x; }
ATTNHUB_DEVICE i32 as_operand(i64 x) { return i32(x); }
ATTNHUB_DEVICE bool as_operand(bool x) { return x; }

// A tensor that elements are looked up in. Each index is taken to the nearest that there is: hooks
// also see pairs that a mask hides, and rows past the end of a request.
template <class T, int kRank>
struct TensorParam {
  const T* data;      // [size...]; where that has no elements, some that may be read
  i64 stride[kRank];  // in elements
  i32 size[kRank];

  template <class... Indices>
  ATTNHUB_DEVICE auto at(Indices... indices) const {
    static_assert(sizeof...(Indices) == kRank, "one index for each dimension");
    const i32 index[kRank] = {indices...};
    i64 offset = 0;
#pragma unroll
    for (int i = 0; i < kRank; ++i) {
      offset += max(min(index[i], size[i] - 1), 0) * stride[i];
    }
    return as_operand(ptx::ld_global_constant(data + offset));
  }
};

// A number, or an element on the device that holds it.
template <class T>
struct ScalarParam {
  const T* data;  // or null
  T number;

  // NOTE: by a load that is never done ahead of the test. ld_global_constant may be, as any address
  // it is given has to be good.
  ATTNHUB_DEVICE T get() const { return data == nullptr ? number : ptx::ld_global(data); }
};

}  // namespace attnhub
