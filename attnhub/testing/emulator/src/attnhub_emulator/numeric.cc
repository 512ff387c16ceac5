// Conversions and the special-function unit, in full precision.
#include "numeric.h"

#include <cmath>

namespace attnhub::emulator {

namespace {

constexpr float kSmallestNormal = 0x1p-126f;

float flush(float x) { return std::fabs(x) < kSmallestNormal ? std::copysign(0.0f, x) : x; }

u32 bits_of(float value) {
  u32 bits;
  memcpy(&bits, &value, sizeof(bits));
  return bits;
}

u16 to_bf16(float value) {
  if (std::isnan(value)) return 0x7fff;  // the NaN that cvt makes
  const u32 bits = bits_of(value);
  return u16((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

u16 to_half(float value) {
  if (std::isnan(value)) return 0x7fff;
  const u16 sign = u16(bits_of(value) >> 16 & 0x8000);
  const float size = std::fabs(value);
  if (size >= 65520.0f) return u16(sign | 0x7c00);  // rounds to infinity
  if (size < 0x1p-14f) {                            // subnormal: a multiple of 2^-24
    return u16(sign | u16(std::nearbyint(size * 0x1p24f)));
  }
  const u32 bits = bits_of(size);
  const u32 rounded = bits + 0xfff + ((bits >> 13) & 1);
  return u16(sign | ((rounded - (112u << 23)) >> 13));
}

}  // namespace

float half_to_float(u16 bits) {
  const int exponent = bits >> 10 & 31;
  const float fraction = float(bits & 1023);
  float size = exponent == 0    ? std::ldexp(fraction, -24)
               : exponent == 31 ? (fraction == 0 ? INFINITY : NAN)
                                : std::ldexp(1024.0f + fraction, exponent - 25);
  return bits & 0x8000 ? -size : size;
}

float fp8_to_float(u32 bits, bool is_e5m2) {
  if (is_e5m2) return half_to_float(u16((bits & 0xff) << 8));
  const int exponent = bits >> 3 & 15, fraction = bits & 7;
  const float size = (bits & 0x7f) == 0x7f ? NAN
                     : exponent == 0       ? std::ldexp(float(fraction), -9)
                                           : std::ldexp(float(8 + fraction), exponent - 10);
  return bits & 0x80 ? -size : size;
}

u32 pack(float low, float high, bool is_bf16) {
  return is_bf16 ? to_bf16(low) | u32(to_bf16(high)) << 16
                 : to_half(low) | u32(to_half(high)) << 16;
}

u32 multiply_pair(u32 a, u32 b, bool is_bf16) {
  float product[2];
  for (int i = 0; i < 2; ++i) {
    product[i] = pair_element(a, i, is_bf16) * pair_element(b, i, is_bf16);
  }
  return pack(product[0], product[1], is_bf16);
}

u32 byte_permute(u32 a, u32 b, u32 selector) {
  const u64 bytes = u64(b) << 32 | a;
  u32 result = 0;
  for (int i = 0; i < 4; ++i) {
    const u32 which = selector >> (4 * i) & 7;
    result |= u32(bytes >> (8 * which) & 0xff) << (8 * i);
  }
  return result;
}

float ex2(float x) { return flush(std::exp2(flush(x))); }
float lg2(float x) { return flush(std::log2(flush(x))); }
float rcp(float x) { return flush(1.0f / flush(x)); }
float sin_approx(float x) { return flush(std::sin(flush(x))); }
float cos_approx(float x) { return std::cos(flush(x)); }
float tanh_approx(float x) { return std::tanh(x); }
float div_full(float a, float b) { return flush(flush(a) / flush(b)); }
float sqrt_approx(float x) { return std::sqrt(flush(x)); }
float rsqrt_approx(float x) { return 1.0f / std::sqrt(flush(x)); }
float min_nan(float a, float b) { return std::isnan(a) || a < b ? a : b; }
float max_nan(float a, float b) { return std::isnan(a) || a > b ? a : b; }

}  // namespace attnhub::emulator
