// Typed loads and stores. One call moves one value of 1 to 16 bytes: use Vec for wide accesses.
// Shared memory is named by its 32-bit address, as in PTX; a member m of a plan S lies at
// dynamic_smem() + offset_of(&S::m).
#pragma once

#include "attnhub/common/types.cuh"

#ifndef ATTNHUB_EMULATOR
extern __shared__ __align__(1024) unsigned char attnhub_dynamic_smem[];
#endif

namespace attnhub::ptx {

// Address of the dynamic shared memory, aligned to 1024 bytes as 128-byte swizzles want.
ATTNHUB_DEVICE u32 dynamic_smem() {
#ifdef ATTNHUB_EMULATOR
  return emulator::dynamic_smem();
#else
  return u32(__cvta_generic_to_shared(attnhub_dynamic_smem));
#endif
}

// Where a member lies in its struct. NOTE: NVRTC has no offsetof; any address that is not null will
// do to measure from, as nothing is read.
template <class Struct, class Member>
ATTNHUB_DEVICE u32 offset_of(Member Struct::* member) {
  constexpr u64 kAnywhere = 4096;
  const Struct* anywhere = reinterpret_cast<const Struct*>(kAnywhere);
  return u32(reinterpret_cast<u64>(&(anywhere->*member)) - kAnywhere);
}

#ifndef ATTNHUB_EMULATOR
namespace detail {

// NOTE: one body for every width. `load` and `store` name the instruction up to its type, and
// `asm volatile` keeps these in order with barriers, which are volatile too.
#define ATTNHUB_LOAD(ASM, LOAD, CONSTRAINT, ADDRESS)                                    \
  if constexpr (sizeof(T) == 1) {                                                       \
    u32 r;                                                                              \
    ASM(LOAD ".u8 %0, [%1];" : "=r"(r) : CONSTRAINT(ADDRESS));                          \
    return bit_cast<T>(u8(r));                                                          \
  } else if constexpr (sizeof(T) == 2) {                                                \
    u16 r;                                                                              \
    ASM(LOAD ".u16 %0, [%1];" : "=h"(r) : CONSTRAINT(ADDRESS));                         \
    return bit_cast<T>(r);                                                              \
  } else if constexpr (sizeof(T) == 4) {                                                \
    u32 r;                                                                              \
    ASM(LOAD ".u32 %0, [%1];" : "=r"(r) : CONSTRAINT(ADDRESS));                         \
    return bit_cast<T>(r);                                                              \
  } else if constexpr (sizeof(T) == 8) {                                                \
    Vec<u32, 2> r;                                                                      \
    ASM(LOAD ".v2.u32 {%0, %1}, [%2];" : "=r"(r[0]), "=r"(r[1]) : CONSTRAINT(ADDRESS)); \
    return bit_cast<T>(r);                                                              \
  } else {                                                                              \
    static_assert(sizeof(T) == 16, "loads move 1, 2, 4, 8 or 16 bytes");                \
    Vec<u32, 4> r;                                                                      \
    ASM(LOAD ".v4.u32 {%0, %1, %2, %3}, [%4];"                                          \
        : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])                                \
        : CONSTRAINT(ADDRESS));                                                         \
    return bit_cast<T>(r);                                                              \
  }

#define ATTNHUB_STORE(STORE, CONSTRAINT, ADDRESS)                                            \
  if constexpr (sizeof(T) == 1) {                                                            \
    asm volatile(STORE ".u8 [%0], %1;" ::CONSTRAINT(ADDRESS), "r"(u32(bit_cast<u8>(value)))  \
                 : "memory");                                                                \
  } else if constexpr (sizeof(T) == 2) {                                                     \
    asm volatile(STORE ".u16 [%0], %1;" ::CONSTRAINT(ADDRESS), "h"(bit_cast<u16>(value))     \
                 : "memory");                                                                \
  } else if constexpr (sizeof(T) == 4) {                                                     \
    asm volatile(STORE ".u32 [%0], %1;" ::CONSTRAINT(ADDRESS), "r"(bit_cast<u32>(value))     \
                 : "memory");                                                                \
  } else if constexpr (sizeof(T) == 8) {                                                     \
    const auto r = bit_cast<Vec<u32, 2>>(value);                                             \
    asm volatile(STORE ".v2.u32 [%0], {%1, %2};" ::CONSTRAINT(ADDRESS), "r"(r[0]), "r"(r[1]) \
                 : "memory");                                                                \
  } else {                                                                                   \
    static_assert(sizeof(T) == 16, "stores move 1, 2, 4, 8 or 16 bytes");                    \
    const auto r = bit_cast<Vec<u32, 4>>(value);                                             \
    asm volatile(STORE ".v4.u32 [%0], {%1, %2, %3, %4};" ::CONSTRAINT(ADDRESS), "r"(r[0]),   \
                 "r"(r[1]), "r"(r[2]), "r"(r[3])                                             \
                 : "memory");                                                                \
  }

template <class T>
__device__ __forceinline__ T load_shared(u32 address) {
  ATTNHUB_LOAD(asm volatile, "ld.shared", "r", address)
}
template <class T>
__device__ __forceinline__ void store_shared(u32 address, const T& value) {
  ATTNHUB_STORE("st.shared", "r", address)
}
template <class T>
__device__ __forceinline__ T load_global(const T* address) {
  ATTNHUB_LOAD(asm volatile, "ld.global", "l", address)
}
template <class T>
__device__ __forceinline__ T load_global_once(const T* address) {
  ATTNHUB_LOAD(asm volatile, "ld.global.nc.L1::no_allocate", "l", address)
}
template <class T>
__device__ __forceinline__ T load_global_constant(const T* address) {
  ATTNHUB_LOAD(asm, "ld.global", "l", address)
}
template <class T>
__device__ __forceinline__ T load_global_l2(const T* address) {
  ATTNHUB_LOAD(asm volatile, "ld.global.cg", "l", address)
}
template <class T>
__device__ __forceinline__ void store_global(T* address, const T& value) {
  ATTNHUB_STORE("st.global", "l", address)
}

#undef ATTNHUB_LOAD
#undef ATTNHUB_STORE

}  // namespace detail
#endif

template <class T>
ATTNHUB_DEVICE T ld_shared(u32 address) {
#ifdef ATTNHUB_EMULATOR
  T value;
  emulator::shared_read(address, &value, sizeof(T));
  return value;
#else
  return detail::load_shared<T>(address);
#endif
}

template <class T>
ATTNHUB_DEVICE void st_shared(u32 address, T value) {
#ifdef ATTNHUB_EMULATOR
  emulator::shared_write(address, &value, sizeof(T));
#else
  detail::store_shared(address, value);
#endif
}

template <class T>
ATTNHUB_DEVICE T ld_global(const T* address) {
#ifdef ATTNHUB_EMULATOR
  T value;
  emulator::global_read(address, &value, sizeof(T));
  return value;
#else
  return detail::load_global(address);
#endif
}

// For data that no kernel writes while this one runs and that is read once: bypasses L1.
template <class T>
ATTNHUB_DEVICE T ld_global_once(const T* address) {
#ifdef ATTNHUB_EMULATOR
  return ld_global(address);
#else
  return detail::load_global_once(address);
#endif
}

// For data that no kernel writes while this one runs and that is read again and again: equal loads
// become one.
template <class T>
ATTNHUB_DEVICE T ld_global_constant(const T* address) {
#ifdef ATTNHUB_EMULATOR
  return ld_global(address);
#else
  return detail::load_global_constant(address);
#endif
}

// For data that other SMs wrote while this kernel runs: L1 may hold what was there before. The
// caller has seen by ld_acquire or an atomic that it was written.
template <class T>
ATTNHUB_DEVICE T ld_global_l2(const T* address) {
#ifdef ATTNHUB_EMULATOR
  return ld_global(address);
#else
  return detail::load_global_l2(address);
#endif
}

template <class T>
ATTNHUB_DEVICE void st_global(T* address, T value) {
#ifdef ATTNHUB_EMULATOR
  emulator::global_write(address, &value, sizeof(T));
#else
  detail::store_global(address, value);
#endif
}

}  // namespace attnhub::ptx
