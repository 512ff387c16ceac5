#pragma once

#include "index.cuh"

namespace demo {

// Multiplies data[0..size) by a factor, kUnroll elements a thread.
template <typename T, int kUnroll>
__device__ __forceinline__ void scale(T* data, int size, float factor) {
#pragma unroll
  for (int i = 0; i < kUnroll; ++i) {
    const int idx = element_index(i, kUnroll);
    if (idx < size) data[idx] = T(float(data[idx]) * factor);
  }
}

}  // namespace demo
