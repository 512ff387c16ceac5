// Boxes of tensors of any rank, by TMA.
#pragma once

#include "attnhub/ptx/barrier.cuh"
#include "attnhub/ptx/cluster.cuh"
#include "attnhub/ptx/fence.cuh"
#include "attnhub/ptx/mbarrier.cuh"
#include "attnhub/ptx/memory.cuh"
#include "attnhub/ptx/tma.cuh"

namespace tma {

using namespace attnhub;

struct Params {
  ptx::TensorMap x, y;
  const i32* load_at;   // [rank]: the coordinates of a box of x
  const i32* store_at;  // [rank]: and of one of y
  i32* boxes;           // [num_ctas, num_bytes]
  int num_bytes;        // of a box
};

template <int kRank>
ATTNHUB_DEVICE ptx::Coordinates<kRank> coordinates(const i32* at) {
  ptx::Coordinates<kRank> c;
  for (int i = 0; i < kRank; ++i) c.at[i] = ptx::ld_global(at + i);
  return c;
}

ATTNHUB_DEVICE u32 full() { return ptx::dynamic_smem(); }
ATTNHUB_DEVICE u32 box() { return ptx::dynamic_smem() + 1024; }

ATTNHUB_DEVICE void expect(const Params& p) {
  ptx::mbarrier_init(full(), 1);
  ptx::fence_mbarrier_init();
  ptx::mbarrier_arrive_expect_tx(full(), p.num_bytes);
}

// boxes[cta]: the bytes of the box as they lie in shared memory.
ATTNHUB_DEVICE void show(const Params& p) {
  ptx::mbarrier_wait(full(), 0);
  const int num_words = p.num_bytes / 4;
  for (int i = threadIdx.x; i < num_words; i += blockDim.x) {
    ptx::st_global(p.boxes + blockIdx.x * num_words + i, ptx::ld_shared<i32>(box() + i * 4));
  }
}

// Loads a box, shows it and stores it.
template <int kRank>
ATTNHUB_DEVICE void copy_box(const Params& p) {
  if (threadIdx.x == 0) {
    expect(p);
    ptx::tma_load(box(), p.x, full(), coordinates<kRank>(p.load_at));
  }
  ptx::sync_threads();
  show(p);
  ptx::sync_threads();
  if (threadIdx.x == 0) {
    ptx::tma_store(p.y, box(), coordinates<kRank>(p.store_at));
    ptx::bulk_commit();
    ptx::bulk_wait<0>();
  }
}

// Loads a box to both CTAs of a cluster, which show it.
template <int kRank>
ATTNHUB_DEVICE void share_box(const Params& p) {
  if (threadIdx.x == 0) expect(p);
  ptx::cluster_sync();
  if (threadIdx.x == 0 && ptx::cluster_rank() == 0) {
    ptx::tma_load_multicast(box(), p.x, full(), coordinates<kRank>(p.load_at), 3);
  }
  show(p);
  ptx::cluster_sync();
}

}  // namespace tma
