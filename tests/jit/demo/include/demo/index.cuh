#pragma once

namespace demo {

__device__ __forceinline__ int element_index(int i, int unroll) {
  return (blockIdx.x * unroll + i) * blockDim.x + threadIdx.x;
}

}  // namespace demo
