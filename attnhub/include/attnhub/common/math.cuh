// Functions of numbers that neither C++ nor one instruction has, as operations of traced mods and
// rotations need them.
#pragma once

#include "attnhub/common/constants.cuh"
#include "attnhub/common/types.cuh"
#include "attnhub/ptx/math.cuh"

namespace attnhub {

// 1 / (1 + e^-x), of relative error 2^-21 + |x| 2^-23 at most.
ATTNHUB_DEVICE float sigmoid(float x) { return ptx::rcp(1.0f + ptx::ex2(x * -kLog2E)); }

// cap tanh(x / cap), to cap 2^-21. tanh.approx is good to 2^-11, too coarse once multiplied by cap.
ATTNHUB_DEVICE float soft_cap(float x, float cap) {
  const float exponential = ptx::ex2(x * ptx::div_full(2.0f * kLog2E, cap));
  return cap - 2.0f * cap * ptx::rcp(exponential + 1.0f);
}

// An angle less the full turns in it. What is left is within -pi .. pi and off by 2^-22.9 at most
// while the angle is below 2^23 in size; the special-function unit is of no use on larger ones.
ATTNHUB_DEVICE float without_turns(float angle) {
  constexpr float kPerTurn = 0.15915494309189535f;  // 1 / 2 pi
  constexpr float kTurn = 6.2831854820251465f;      // 2 pi in float32, and the rest of it
  constexpr float kTurnRest = -1.7484556000744883e-7f;
  constexpr float kRounder = 12582912.0f;  // 1.5 * 2^23: a sum with it is a whole number

  const float turns = fmaf(angle, kPerTurn, kRounder) - kRounder;
  // NOTE: fma, for turns * kTurn rounded by itself would be off by as much as the angle's last bit.
  return fmaf(-turns, kTurnRest, fmaf(-turns, kTurn, angle));
}

// The floor of the exact a / b, and what is left: a number between 0 and b, with the sign of b.
// NOTE: division by zero is undefined in C++: the compiler would drop `b == 0 ? 0 : a / b`.
ATTNHUB_DEVICE i32 floor_div(i32 a, i32 b) {
  const i32 divisor = b == 0 ? 1 : b;
  const i32 quotient = a / divisor, rest = a % divisor;
  return quotient - (rest != 0 && (rest < 0) != (divisor < 0));
}

ATTNHUB_DEVICE i32 floor_mod(i32 a, i32 b) {
  const i32 divisor = b == 0 ? 1 : b, rest = a % divisor;
  return rest != 0 && (rest < 0) != (divisor < 0) ? rest + divisor : rest;
}

}  // namespace attnhub
