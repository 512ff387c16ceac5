// What a kernel source sees in place of CUDA when it is compiled for the emulator: keywords, built-in
// variables, and functions that need no wrapper.
//
// NOTE: nothing of the C++ library, nor math.h, which includes it: <algorithm> and <cmath> would take
// longer to compile than most kernels.
#pragma once

#include <string.h>

#include "functions.h"

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __grid_constant__

#define threadIdx (::attnhub::emulator::built_ins.thread)
#define blockIdx (::attnhub::emulator::built_ins.block)
#define blockDim (::attnhub::emulator::built_ins.block_dim)
#define gridDim (::attnhub::emulator::built_ins.grid_dim)

// C's functions of a float that CUDA has too, declared as math.h declares them.
namespace attnhub::emulator {
using OfOne = float(float) noexcept;
using OfTwo = float(float, float) noexcept;
using OfThree = float(float, float, float) noexcept;
}  // namespace attnhub::emulator
extern "C" {
attnhub::emulator::OfOne acosf, acoshf, asinf, asinhf, atanf, atanhf, cbrtf, ceilf, cosf, coshf,
    erff, erfcf, expf, exp2f, expm1f, fabsf, floorf, lgammaf, logf, log10f, log1pf, log2f,
    nearbyintf, rintf, roundf, sinf, sinhf, sqrtf, tanf, tanhf, tgammaf, truncf;
attnhub::emulator::OfTwo atan2f, copysignf, fdimf, fmaxf, fminf, fmodf, hypotf, powf, remainderf;
attnhub::emulator::OfThree fmaf;
}

// CUDA's overloads of one type each.
template <class T>
constexpr T min(T a, T b) {
  return b < a ? b : a;
}
template <class T>
constexpr T max(T a, T b) {
  return a < b ? b : a;
}
template <class T>
constexpr T abs(T x) {
  return x < 0 ? -x : x;
}
// Of a NaN and a number the number, and -0 has an absolute value too.
inline float min(float a, float b) { return fminf(a, b); }
inline float max(float a, float b) { return fmaxf(a, b); }
inline float abs(float x) { return fabsf(x); }
