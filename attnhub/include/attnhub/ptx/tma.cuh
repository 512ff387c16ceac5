// TMA (sm_90): the copy engine moves boxes of a tensor between global and shared memory. One thread
// issues a copy. What a box has outside its tensor reads as zero and is not written.
#pragma once

#include "attnhub/common/types.cuh"

namespace attnhub::ptx {

// CUDA's tensor map. A kernel takes it inside its __grid_constant__ parameter.
struct alignas(64) TensorMap {
  unsigned char opaque[128];
};

// Where a box begins, innermost dimension first, in elements. The innermost one is at a multiple of
// 16 bytes, and those of a store are not negative: else the instruction is illegal.
template <int kRank>
struct Coordinates {
  static_assert(kRank >= 1 && kRank <= 5, "a tensor map has 1 to 5 dimensions");
  i32 at[kRank];
};
template <class... Ints>
Coordinates(Ints...) -> Coordinates<int(sizeof...(Ints))>;

// Loads a box to an address aligned to 128 bytes (1024 with a 128-byte swizzle). Its bytes count
// towards the mbarrier, which must expect them.
template <int kRank>
ATTNHUB_DEVICE void tma_load(u32 to_shared, const TensorMap& map, u32 mbarrier,
                             const Coordinates<kRank>& c) {
#ifdef ATTNHUB_EMULATOR
  emulator::tma_load(to_shared, &map, mbarrier, c.at, kRank);
#else
#define ATTNHUB_TMA_LOAD(DIMENSIONS, LIST, ...)                                        \
  asm volatile("cp.async.bulk.tensor." DIMENSIONS                                      \
               ".shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, " LIST \
               "], [%2];" ::"r"(to_shared),                                            \
               "l"(&map), "r"(mbarrier), __VA_ARGS__                                   \
               : "memory")
  if constexpr (kRank == 1) {
    ATTNHUB_TMA_LOAD("1d", "{%3}", "r"(c.at[0]));
  } else if constexpr (kRank == 2) {
    ATTNHUB_TMA_LOAD("2d", "{%3, %4}", "r"(c.at[0]), "r"(c.at[1]));
  } else if constexpr (kRank == 3) {
    ATTNHUB_TMA_LOAD("3d", "{%3, %4, %5}", "r"(c.at[0]), "r"(c.at[1]), "r"(c.at[2]));
  } else if constexpr (kRank == 4) {
    ATTNHUB_TMA_LOAD("4d", "{%3, %4, %5, %6}", "r"(c.at[0]), "r"(c.at[1]), "r"(c.at[2]),
                     "r"(c.at[3]));
  } else {
    ATTNHUB_TMA_LOAD("5d", "{%3, %4, %5, %6, %7}", "r"(c.at[0]), "r"(c.at[1]), "r"(c.at[2]),
                     "r"(c.at[3]), "r"(c.at[4]));
  }
#undef ATTNHUB_TMA_LOAD
#endif
}

// Loads a box of a map with two to four dimensions to the same place of every CTA of the cluster
// whose bit is set in `ranks`, and counts its bytes at the mbarrier in the same place of each.
template <int kRank>
ATTNHUB_DEVICE void tma_load_multicast(u32 to_shared, const TensorMap& map, u32 mbarrier,
                                       const Coordinates<kRank>& c, u16 ranks) {
  static_assert(kRank >= 2 && kRank <= 4, "two to four dimensions");
#ifdef ATTNHUB_EMULATOR
  emulator::tma_load_multicast(to_shared, &map, mbarrier, c.at, kRank, ranks);
#else
#define ATTNHUB_TMA_MULTICAST(DIMENSIONS, LIST, ...)                                      \
  asm volatile("cp.async.bulk.tensor." DIMENSIONS                                         \
               ".shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster " \
               "[%0], [%1, " LIST "], [%2], %3;" ::"r"(to_shared),                        \
               "l"(&map), "r"(mbarrier), "h"(ranks), __VA_ARGS__                          \
               : "memory")
  if constexpr (kRank == 2) {
    ATTNHUB_TMA_MULTICAST("2d", "{%4, %5}", "r"(c.at[0]), "r"(c.at[1]));
  } else if constexpr (kRank == 3) {
    ATTNHUB_TMA_MULTICAST("3d", "{%4, %5, %6}", "r"(c.at[0]), "r"(c.at[1]), "r"(c.at[2]));
  } else {
    ATTNHUB_TMA_MULTICAST("4d", "{%4, %5, %6, %7}", "r"(c.at[0]), "r"(c.at[1]), "r"(c.at[2]),
                          "r"(c.at[3]));
  }
#undef ATTNHUB_TMA_MULTICAST
#endif
}

// Stores a box from shared memory, as part of the next group; it may end outside its tensor. Call fence_proxy_async() before it.
template <int kRank>
ATTNHUB_DEVICE void tma_store(const TensorMap& map, u32 from_shared, const Coordinates<kRank>& c) {
#ifdef ATTNHUB_EMULATOR
  emulator::tma_store(&map, from_shared, c.at, kRank);
#else
#define ATTNHUB_TMA_STORE(DIMENSIONS, LIST, ...)                                              \
  asm volatile("cp.async.bulk.tensor." DIMENSIONS ".global.shared::cta.bulk_group [%0, " LIST \
               "], [%1];" ::"l"(&map),                                                        \
               "r"(from_shared), __VA_ARGS__                                                  \
               : "memory")
  if constexpr (kRank == 1) {
    ATTNHUB_TMA_STORE("1d", "{%2}", "r"(c.at[0]));
  } else if constexpr (kRank == 2) {
    ATTNHUB_TMA_STORE("2d", "{%2, %3}", "r"(c.at[0]), "r"(c.at[1]));
  } else if constexpr (kRank == 3) {
    ATTNHUB_TMA_STORE("3d", "{%2, %3, %4}", "r"(c.at[0]), "r"(c.at[1]), "r"(c.at[2]));
  } else if constexpr (kRank == 4) {
    ATTNHUB_TMA_STORE("4d", "{%2, %3, %4, %5}", "r"(c.at[0]), "r"(c.at[1]), "r"(c.at[2]),
                      "r"(c.at[3]));
  } else {
    ATTNHUB_TMA_STORE("5d", "{%2, %3, %4, %5, %6}", "r"(c.at[0]), "r"(c.at[1]), "r"(c.at[2]),
                      "r"(c.at[3]), "r"(c.at[4]));
  }
#undef ATTNHUB_TMA_STORE
#endif
}

// Closes a group of the stores issued since the last commit.
ATTNHUB_DEVICE void bulk_commit() {
#ifdef ATTNHUB_EMULATOR
  emulator::bulk_commit();
#else
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
#endif
}

// Waits until all but kPending groups of this thread have been read, so that their shared memory
// may be written or given up.
template <int kPending>
ATTNHUB_DEVICE void bulk_wait_read() {
#ifdef ATTNHUB_EMULATOR
  emulator::bulk_wait(kPending);
#else
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory");
#endif
}

// The same until they have also been written, so that others may read the tensor.
template <int kPending>
ATTNHUB_DEVICE void bulk_wait() {
#ifdef ATTNHUB_EMULATOR
  emulator::bulk_wait(kPending);
#else
  asm volatile("cp.async.bulk.wait_group %0;" ::"n"(kPending) : "memory");
#endif
}

ATTNHUB_DEVICE void prefetch_tensor_map(const TensorMap& map) {
#ifndef ATTNHUB_EMULATOR
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
#endif
}

}  // namespace attnhub::ptx
