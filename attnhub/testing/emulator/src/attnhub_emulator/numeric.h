// 16-bit and 8-bit floating point on the host.
#pragma once

#include <cstring>

#include "functions.h"

namespace attnhub::emulator {

inline float bf16_to_float(u16 bits) {
  const u32 wide = u32(bits) << 16;
  float value;
  memcpy(&value, &wide, sizeof(value));
  return value;
}

float fp8_to_float(u32 bits, bool is_e5m2);  // of the lowest byte

// One of the two values in a register.
inline float pair_element(u32 pair, int which, bool is_bf16) {
  const u16 bits = u16(pair >> (16 * which));
  return is_bf16 ? bf16_to_float(bits) : half_to_float(bits);
}

}  // namespace attnhub::emulator
