// 16-bit floating point on the host.
#pragma once

#include <cstring>

#include "cuda.h"

namespace attnhub::emulator {

inline float bf16_to_float(u16 bits) {
  const u32 wide = u32(bits) << 16;
  float value;
  memcpy(&value, &wide, sizeof(value));
  return value;
}

}  // namespace attnhub::emulator
