// Approximate functions of the special-function unit, each one instruction, good to about 22 bits
// (PTX ISA, *.approx.f32). Subnormal inputs and results become zero, but for tanh_approx.
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

}  // namespace attnhub::ptx
