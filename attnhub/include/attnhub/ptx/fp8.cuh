// FP8 to and from Half, Bf16 and float32. Every FP8 value is one of each, so only narrowing rounds:
// to nearest even, and what is too large (infinity too) becomes the largest number of its sign.
//
// sm_89 has instructions. Before it, and in the emulator, integer arithmetic gives the same values;
// a NaN stays one but may differ in its bits.
#pragma once

#include "attnhub/ptx/convert.cuh"

#if !defined(ATTNHUB_EMULATOR) && defined(__CUDA_ARCH__)
#if __CUDA_ARCH__ >= 890
#define ATTNHUB_FP8_INSTRUCTIONS
#endif
#endif

namespace attnhub::ptx {

template <class F>
constexpr bool kIsFp8 = kIsSame<F, E4m3> || kIsSame<F, E5m2>;

// Byte i of the result is byte (selector >> 4 i) % 8 of b:a, of which a is the lower half.
ATTNHUB_DEVICE u32 byte_permute(u32 a, u32 b, u32 selector) {
#ifdef ATTNHUB_EMULATOR
  return emulator::byte_permute(a, b, selector);
#else
  return __byte_perm(a, b, selector);
#endif
}

// Products of two pairs of T.
template <class T>
ATTNHUB_DEVICE u32 multiply_pair(u32 a, u32 b) {
#ifdef ATTNHUB_EMULATOR
  return emulator::multiply_pair(a, b, kIsSame<T, Bf16>);
#else
  u32 product;
  if constexpr (kIsSame<T, Half>) {
    asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(product) : "r"(a), "r"(b));
  } else {
    // sm_80 has no mul.bf16x2. Adding -0 changes no sum.
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(product) : "r"(a), "r"(b), "r"(0x80008000u));
  }
  return product;
#endif
}

namespace detail {

// Two E4m3, each in the high byte of a half, as two T without the instruction of sm_89.
template <class T>
ATTNHUB_DEVICE u32 widen_e4m3(u32 high_bytes) {
  // Exponent and fraction move to where T has them. T's bias is larger by 8 (120), which the
  // product by 2^8 (2^120) makes good; it also turns subnormals of E4m3 into normals.
  constexpr int kMoved = kIsSame<T, Half> ? 1 : 4;
  constexpr u32 kFactor = kIsSame<T, Half> ? 0x5c005c00u : 0x7b807b80u;
  const u32 size = high_bytes & 0x7f007f00u;
  const u32 value = multiply_pair<T>(size >> kMoved | (high_bytes & 0x80008000u), kFactor);
  // All ones is NaN: adding one carries into the sign, which then fills the bits below it.
  const u32 nan = (size + 0x01000100u) & 0x80008000u;
  return value | (nan - (nan >> 15));
}

ATTNHUB_DEVICE u32 half_pair_to_bf16(u32 pair) {
  const Vec<float, 2> wide = unpack<Half>(pair);
  return pack<Bf16>(wide[0], wide[1]);
}

// Bytes kFirst and kSecond of four FP8 as a pair of T, the first in the lower half.
template <class T, class F, int kFirst, int kSecond>
ATTNHUB_DEVICE u32 widen(u32 four) {
  constexpr u32 kToHighBytes = 0x0404 | kFirst << 4 | kSecond << 12;
  if constexpr (kIsSame<F, E5m2>) {
    const u32 pair = byte_permute(four, 0, kToHighBytes);
    return kIsSame<T, Half> ? pair : half_pair_to_bf16(pair);
  } else {
#ifdef ATTNHUB_FP8_INSTRUCTIONS
    const u16 two = kSecond == kFirst + 1 ? u16(four >> 8 * kFirst)
                                          : u16(byte_permute(four, 0, kFirst | kSecond << 4));
    u32 pair;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(pair) : "h"(two));
    return kIsSame<T, Half> ? pair : half_pair_to_bf16(pair);
#else
    return widen_e4m3<T>(byte_permute(four, 0, kToHighBytes));
#endif
  }
}

// One float to FP8 without the instruction of sm_89.
template <class F>
ATTNHUB_DEVICE u32 narrow(float value) {
  constexpr int kFraction = kIsSame<F, E4m3> ? 3 : 2, kBias = kIsSame<F, E4m3> ? 7 : 15;
  constexpr int kDropped = 23 - kFraction;
  constexpr u32 kLargest = kIsSame<F, E4m3> ? 0x43e00000u : 0x47600000u;  // 448, 57344
  constexpr u32 kSmallestNormal = u32(128 - kBias) << 23;
  // 2^23 times the smallest subnormal: a sum with it is rounded to a multiple of that.
  constexpr u32 kRounder = u32(127 + 24 - kBias - kFraction) << 23;

  const u32 bits = bit_cast<u32>(value), sign = bits >> 24 & 0x80u;
  u32 size = bits & 0x7fffffffu;
  if (size > 0x7f800000u) return 0x7f;  // NaN
  if (size > kLargest) size = kLargest;
  if (size < kSmallestNormal) {
    return sign | (bit_cast<u32>(bit_cast<float>(size) + bit_cast<float>(kRounder)) - kRounder);
  }
  const u32 rounded = size + (1u << (kDropped - 1)) - 1 + (size >> kDropped & 1);
  return sign | ((rounded >> kDropped) - ((127 - kBias) << kFraction));
}

}  // namespace detail

// Which of four values make a pair.
enum class Fp8Pairs {
  kNeighbours,  // 0 and 1, 2 and 3
  kAlternate,   // 0 and 2, 1 and 3
};

// Four FP8 of a register, as ldmatrix leaves them, to two registers of an operand of mma_m16n8k16.
// T is Half or Bf16. With g = lane / 4 and c = 2 (lane % 4) as there:
//
// kNeighbours, for a matrix of which ldmatrix loaded rows of 16 FP8 along K. The lane has columns
// 2 c .. 2 c + 3 of row g. pairs[0], of the first two, is b0 (or an a[0]); pairs[1] is b1 (a[2]).
// The product takes them for k = c, c + 1 and c + 8, c + 9, and a sum does not mind the order of
// its terms: give the other operand its columns 2 c, 2 c + 1 and 2 c + 2, 2 c + 3 in their places.
//
// kAlternate, for a matrix of which ldmatrix loaded rows of 16 FP8 along N (or M), transposed. That
// moves 16 bits at a time, so the lane has columns 2 g and 2 g + 1 of rows k = c and c + 1.
// pairs[0] is a register for the product of the 8 even columns and pairs[1] one for that of the 8
// odd columns, with k in mma's order. Together a lane's sums are those of columns 2 c .. 2 c + 3.
template <class T, class F, Fp8Pairs kPairs>
ATTNHUB_DEVICE void dequantize(u32 four, u32 (&pairs)[2]) {
  static_assert(kIsSame<T, Half> || kIsSame<T, Bf16>, "T: Half or Bf16");
  static_assert(kIsFp8<F>, "F: E4m3 or E5m2");
  constexpr int kStep = kPairs == Fp8Pairs::kNeighbours ? 1 : 2;
  pairs[0] = detail::widen<T, F, 0, kStep>(four);
  pairs[1] = detail::widen<T, F, 3 - kStep, 3>(four);
}

ATTNHUB_DEVICE float to_float(E4m3 value) {
  return to_float(Half{u16(detail::widen<Half, E4m3, 0, 1>(value.bits))});
}

ATTNHUB_DEVICE float to_float(E5m2 value) { return to_float(Half{u16(value.bits << 8)}); }

// Two floats as two F, `low` in the lower byte.
template <class F>
ATTNHUB_DEVICE u16 pack_fp8(float low, float high) {
  static_assert(kIsFp8<F>, "F: E4m3 or E5m2");
#ifdef ATTNHUB_FP8_INSTRUCTIONS
  u16 packed;
  if constexpr (kIsSame<F, E4m3>) {
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(packed) : "f"(high), "f"(low));
  } else {
    asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(packed) : "f"(high), "f"(low));
  }
  return packed;
#else
  return u16(detail::narrow<F>(low) | detail::narrow<F>(high) << 8);
#endif
}

}  // namespace attnhub::ptx

#undef ATTNHUB_FP8_INSTRUCTIONS
