// Approximate functions of the special-function unit, each one instruction, good to about 22 bits
// (PTX ISA, *.approx.f32). Subnormal inputs and results become zero, but for tanh_approx. And the
// smaller and the larger of two numbers, where C++'s own would lose a NaN.
#pragma once

#include "attnhub/common/types.cuh"

namespace attnhub::ptx {

// 2^x; 2^-inf = 0.
ATTNHUB_DEVICE float ex2(float x) {
#ifdef ATTNHUB_EMULATOR
  return emulator::ex2(x);
#else
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#endif
}

// log2(x); log2(0) = -inf.
ATTNHUB_DEVICE float lg2(float x) {
#ifdef ATTNHUB_EMULATOR
  return emulator::lg2(x);
#else
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#endif
}

// 1 / x.
ATTNHUB_DEVICE float rcp(float x) {
#ifdef ATTNHUB_EMULATOR
  return emulator::rcp(x);
#else
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#endif
}

// a / b, in the whole range and to 2 ulp. A constant divisor costs a multiplication.
ATTNHUB_DEVICE float div_full(float a, float b) {
#ifdef ATTNHUB_EMULATOR
  return emulator::div_full(a, b);
#else
  float y;
  asm("div.full.ftz.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
  return y;
#endif
}

// The square root of x, and 1 over it.
ATTNHUB_DEVICE float sqrt_approx(float x) {
#ifdef ATTNHUB_EMULATOR
  return emulator::sqrt_approx(x);
#else
  float y;
  asm("sqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#endif
}

ATTNHUB_DEVICE float rsqrt_approx(float x) {
#ifdef ATTNHUB_EMULATOR
  return emulator::rsqrt_approx(x);
#else
  float y;
  asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#endif
}

// sin(x) and cos(x), to about 2^-21 where |x| <= pi and ever worse beyond: reduce x first.
ATTNHUB_DEVICE float sin_approx(float x) {
#ifdef ATTNHUB_EMULATOR
  return emulator::sin_approx(x);
#else
  float y;
  asm("sin.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#endif
}

ATTNHUB_DEVICE float cos_approx(float x) {
#ifdef ATTNHUB_EMULATOR
  return emulator::cos_approx(x);
#else
  float y;
  asm("cos.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#endif
}

// tanh(x), to about 2^-11.
ATTNHUB_DEVICE float tanh_approx(float x) {
#ifdef ATTNHUB_EMULATOR
  return emulator::tanh_approx(x);
#else
  float y;
  asm("tanh.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#endif
}

// Exact, and NaN if a or b is.
ATTNHUB_DEVICE float min_nan(float a, float b) {
#ifdef ATTNHUB_EMULATOR
  return emulator::min_nan(a, b);
#else
  float y;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
  return y;
#endif
}

ATTNHUB_DEVICE float max_nan(float a, float b) {
#ifdef ATTNHUB_EMULATOR
  return emulator::max_nan(a, b);
#else
  float y;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
  return y;
#endif
}

}  // namespace attnhub::ptx
