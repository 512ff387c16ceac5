// Clusters (sm_90): CTAs of one cluster see each other's shared memory and meet at a barrier. A CTA
// may not end while others may still reach its shared memory: call cluster_sync() first.
#pragma once

#include "attnhub/common/types.cuh"

namespace attnhub::ptx {

// Which CTA of its cluster this one is.
ATTNHUB_DEVICE u32 cluster_rank() {
#ifdef ATTNHUB_EMULATOR
  return emulator::cluster_rank();
#else
  u32 rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
#endif
}

// All threads of all CTAs of the cluster; orders memory accesses too.
ATTNHUB_DEVICE void cluster_sync() {
#ifdef ATTNHUB_EMULATOR
  emulator::cluster_sync();
#else
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
}

// The address by which any CTA of the cluster reaches what lies at `address` in CTA `rank`.
ATTNHUB_DEVICE u32 cluster_address(u32 address, u32 rank) {
#ifdef ATTNHUB_EMULATOR
  return emulator::cluster_address(address, rank);
#else
  u32 mapped;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(mapped) : "r"(address), "r"(rank));
  return mapped;
#endif
}

// Loads 4 bytes from a cluster_address().
template <class T>
ATTNHUB_DEVICE T ld_cluster(u32 address) {
  static_assert(sizeof(T) == 4, "4 bytes");
#ifdef ATTNHUB_EMULATOR
  T value;
  emulator::shared_read(address, &value, sizeof(T));
  return value;
#else
  u32 bits;
  asm volatile("ld.shared::cluster.u32 %0, [%1];" : "=r"(bits) : "r"(address) : "memory");
  return bit_cast<T>(bits);
#endif
}

template <class T>
ATTNHUB_DEVICE void st_cluster(u32 address, T value) {
  static_assert(sizeof(T) == 4, "4 bytes");
#ifdef ATTNHUB_EMULATOR
  emulator::shared_write(address, &value, sizeof(T));
#else
  asm volatile("st.shared::cluster.u32 [%0], %1;" ::"r"(address), "r"(bit_cast<u32>(value))
               : "memory");
#endif
}

// Arrives at an mbarrier of another CTA, or one's own, by its cluster_address().
ATTNHUB_DEVICE void mbarrier_arrive_cluster(u32 mbarrier) {
#ifdef ATTNHUB_EMULATOR
  emulator::mbarrier_arrive(mbarrier, 0);
#else
  asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(mbarrier)
               : "memory");
#endif
}

// Waits as mbarrier_wait, for a phase that threads of other CTAs arrive at.
ATTNHUB_DEVICE void mbarrier_wait_cluster(u32 mbarrier, u32 parity) {
#ifdef ATTNHUB_EMULATOR
  emulator::mbarrier_wait(mbarrier, parity);
#else
  u32 is_over = 0;
  while (is_over == 0) {
    asm volatile(
        "{ .reg .pred p; mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2; "
        "selp.u32 %0, 1, 0, p; }"
        : "=r"(is_over)
        : "r"(mbarrier), "r"(parity)
        : "memory");
  }
#endif
}

}  // namespace attnhub::ptx
