// float32 to and from 16-bit types, to nearest even.
#pragma once

#include "attnhub/common/types.cuh"

namespace attnhub::ptx {

// Two floats as two T in one register, `low` in the lower half.
template <class T>
ATTNHUB_DEVICE u32 pack(float low, float high) {
  static_assert(kIsSame<T, Half> || kIsSame<T, Bf16>, "T: Half or Bf16");
#ifdef ATTNHUB_EMULATOR
  return emulator::pack(low, high, kIsSame<T, Bf16>);
#else
  u32 packed;
  if constexpr (kIsSame<T, Half>) {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  } else {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  }
  return packed;
#endif
}

ATTNHUB_DEVICE float to_float(Half value) {
#ifdef ATTNHUB_EMULATOR
  return emulator::half_to_float(value.bits);
#else
  float wide;
  asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(value.bits));
  return wide;
#endif
}

ATTNHUB_DEVICE float to_float(Bf16 value) { return bit_cast<float>(u32(value.bits) << 16); }

// The two T of one register, the lower half first.
template <class T>
ATTNHUB_DEVICE Vec<float, 2> unpack(u32 packed) {
  static_assert(kIsSame<T, Half> || kIsSame<T, Bf16>, "T: Half or Bf16");
  if constexpr (kIsSame<T, Half>) {
    return {to_float(Half{u16(packed)}), to_float(Half{u16(packed >> 16)})};
  } else {
    return {bit_cast<float>(packed << 16), bit_cast<float>(packed & 0xffff0000u)};
  }
}

template <class T>
ATTNHUB_DEVICE T from_float(float value) {
  return T{u16(pack<T>(value, 0.0f) & 0xffffu)};
}

}  // namespace attnhub::ptx
