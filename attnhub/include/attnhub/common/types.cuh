// Scalars and small vectors with the same layout on the host, on the GPU and in the emulator.
#pragma once

#include "attnhub/ptx/target.cuh"

namespace attnhub {

using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;
using i32 = int;
using i64 = long long;

static_assert(sizeof(u16) == 2 && sizeof(u32) == 4 && sizeof(u64) == 8, "sizes that PTX expects");

// NOTE: storage only. cuda_fp16.h and its like cost compile time; ptx/convert.cuh and ptx/fp8.cuh
// have the conversions.
struct alignas(2) Half {
  u16 bits;
};
struct alignas(2) Bf16 {
  u16 bits;
};
// FP8 with 4 and 3, or 5 and 2 bits of exponent and fraction. E4m3 has no infinity, and its only
// NaN are 0x7f and 0xff; E5m2 is the upper half of a Half.
struct E4m3 {
  u8 bits;
};
struct E5m2 {
  u8 bits;
};

// kCount elements that one instruction moves.
template <class T, int kCount>
struct alignas(sizeof(T) * kCount) Vec {
  static_assert((kCount & (kCount - 1)) == 0, "kCount: a power of two");
  static_assert(sizeof(T) * kCount <= 16, "one instruction moves at most 16 bytes");
  T at[kCount];

  ATTNHUB_HOST_DEVICE T& operator[](int i) { return at[i]; }
  ATTNHUB_HOST_DEVICE const T& operator[](int i) const { return at[i]; }
};

template <class A, class B>
constexpr bool kIsSame = false;
template <class A>
constexpr bool kIsSame<A, A> = true;

// Reads the bits of a value as another type of the same size.
template <class To, class From>
ATTNHUB_HOST_DEVICE To bit_cast(const From& from) {
  static_assert(sizeof(To) == sizeof(From), "bit_cast keeps the size");
  To to;
  memcpy(&to, &from, sizeof(To));
  return to;
}

}  // namespace attnhub
