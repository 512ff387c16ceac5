// Numbers that kernels share. NOTE: NVRTC has neither INFINITY nor the functions that make one.
#pragma once

namespace attnhub {

constexpr float kInf = __builtin_bit_cast(float, 0x7f800000u);
constexpr float kMinusInf = __builtin_bit_cast(float, 0xff800000u);
constexpr float kNan = __builtin_bit_cast(float, 0x7fc00000u);
constexpr float kLog2E = 1.4426950408889634f;
constexpr float kLn2 = 0.6931471805599453f;

}  // namespace attnhub
