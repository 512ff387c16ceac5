#pragma once

#include "index.cuh"

namespace demo {

template <typename T>
struct Params {
  T* data;  // [size]
  int size;
};

// Multiplies data by a factor, kUnroll elements a thread.
template <typename T, int kUnroll>
__device__ __forceinline__ void scale(const Params<T>& p, float factor) {
#pragma unroll
  for (int i = 0; i < kUnroll; ++i) {
    const int idx = element_index(i, kUnroll);
    if (idx < p.size) p.data[idx] = T(float(p.data[idx]) * factor);
  }
}

}  // namespace demo
