// Two CTAs of a cluster: shared memory of each other, remote arrivals, multicast.
#pragma once

#include "attnhub/ptx/barrier.cuh"
#include "attnhub/ptx/cluster.cuh"
#include "attnhub/ptx/fence.cuh"
#include "attnhub/ptx/grid.cuh"
#include "attnhub/ptx/mbarrier.cuh"
#include "attnhub/ptx/memory.cuh"
#include "attnhub/ptx/tma.cuh"

namespace clusters {

using namespace attnhub;

enum class Bug { kNone, kNoSyncBefore, kNoSyncAfter, kWrongRank, kOneReader };

struct Params {
  ptx::TensorMap x;  // [rows, 32], in boxes [8, 32]
  float* y;          // [num_ctas, 32] or [num_ctas, 8, 32]
};

// y[cta, t] = 100 rank + t of the peer, read from its shared memory.
template <Bug kBug>
ATTNHUB_DEVICE void exchange(const Params& p) {
  ptx::grid_wait();
  const u32 rank = ptx::cluster_rank(), mine = ptx::dynamic_smem() + threadIdx.x * 4;
  ptx::st_shared(mine, float(100 * rank + threadIdx.x));
  if constexpr (kBug != Bug::kNoSyncBefore) ptx::cluster_sync();
  const u32 peer = ptx::cluster_address(mine, kBug == Bug::kWrongRank ? 2 : rank ^ 1);
  if (rank == 1 || kBug == Bug::kNone) {
    ptx::st_global(p.y + blockIdx.x * 32 + threadIdx.x, ptx::ld_cluster<float>(peer));
  }
  ptx::grid_launch_dependents();
  if constexpr (kBug != Bug::kNoSyncAfter) ptx::cluster_sync();
}

// The same, written by the peer.
ATTNHUB_DEVICE void push(const Params& p) {
  const u32 rank = ptx::cluster_rank(), mine = ptx::dynamic_smem() + threadIdx.x * 4;
  ptx::cluster_sync();  // the peer has begun
  ptx::st_cluster(ptx::cluster_address(mine, rank ^ 1), float(100 * rank + threadIdx.x));
  ptx::cluster_sync();
  ptx::st_global(p.y + blockIdx.x * 32 + threadIdx.x, ptx::ld_shared<float>(mine));
}

// Rank 0 loads every box for both; each CTA tells it when its slot may be filled again.
template <Bug kBug>
ATTNHUB_DEVICE void multicast(const Params& p) {
  constexpr int kBoxes = 3;
  constexpr u32 kBytes = 8 * 32 * 4;
  const u32 slot = ptx::dynamic_smem(), full = slot + kBytes, empty = full + 8;
  const u32 rank = ptx::cluster_rank();
  if (threadIdx.x == 0) {
    ptx::mbarrier_init(full, 1);
    ptx::mbarrier_init(empty, kBug == Bug::kOneReader ? 32 : 64);
    ptx::fence_mbarrier_init();
  }
  ptx::cluster_sync();
  float sum = 0.0f;
  for (int i = 0; i < kBoxes; ++i) {
    if (threadIdx.x == 0) {
      ptx::mbarrier_arrive_expect_tx(full, kBytes);
      if (rank == 0) {
        ptx::mbarrier_wait_cluster(empty, (i & 1) ^ 1);
        ptx::tma_load_multicast(slot, p.x, full, ptx::Coordinates{0, 8 * i}, 3);
      }
    }
    ptx::mbarrier_wait(full, i & 1);
    for (int row = 0; row < 8; ++row) {
      sum += ptx::ld_shared<float>(slot + (row * 32 + threadIdx.x) * 4);
    }
    if (rank == 0 || kBug != Bug::kOneReader) {
      ptx::mbarrier_arrive_cluster(ptx::cluster_address(empty, 0));
    }
  }
  ptx::st_global(p.y + blockIdx.x * 32 + threadIdx.x, sum);
  ptx::cluster_sync();
}

}  // namespace clusters
