// What the same kernel source is compiled for: a GPU (nvcc, NVRTC) or the CPU emulator (g++).
//
// The two differ inside the wrappers of this folder only. Kernels, layouts and policies never test
// ATTNHUB_EMULATOR. No C++ library header is included: those cost more compile time than a kernel.
#pragma once

#ifdef ATTNHUB_EMULATOR
#include "attnhub_emulator/cuda.h"
#define ATTNHUB_DEVICE inline __attribute__((always_inline))
#define ATTNHUB_HOST_DEVICE inline __attribute__((always_inline))
#else
#define ATTNHUB_DEVICE __device__ __forceinline__
#define ATTNHUB_HOST_DEVICE __host__ __device__ __forceinline__
#endif
