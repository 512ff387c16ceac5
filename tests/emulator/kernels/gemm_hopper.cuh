// C = A B with TMA, mbarriers and wgmma: a producer warpgroup fills a ring, a consumer warpgroup
// multiplies and stores by TMA. kBug plants one fault for the emulator to find.
#pragma once

#include "attnhub/common/fragments.cuh"
#include "attnhub/common/swizzle.cuh"
#include "attnhub/common/wgmma_operand.cuh"
#include "attnhub/ptx/barrier.cuh"
#include "attnhub/ptx/convert.cuh"
#include "attnhub/ptx/fence.cuh"
#include "attnhub/ptx/ldmatrix.cuh"
#include "attnhub/ptx/mbarrier.cuh"
#include "attnhub/ptx/memory.cuh"
#include "attnhub/ptx/registers.cuh"
#include "attnhub/ptx/thread.cuh"
#include "attnhub/ptx/tma.cuh"
#include "attnhub/ptx/wgmma.cuh"

namespace gemm_hopper {

using namespace attnhub;

enum class Bug {
  kNone,
  kWrongPhase,
  kOverArrive,
  kTooFewBytes,
  kTooManyBytes,
  kNoWgmmaWait,
  kNoProxyFence,
  kNoStoreWait,
  kNoEmptyWait,
  kForgetsInit,
};

struct Params {
  ptx::TensorMap a;  // [m, k]
  ptx::TensorMap b;  // [n, k], or [k, n] where A goes through registers
  ptx::TensorMap c;  // [m, n]
  int k;
};

constexpr int kStages = 2, kBlock = 64, kStored = 1;
constexpr u32 kTileBytes = kBlock * kBlock * 2;
using Tile = SwizzledTile<Half, kBlock, kBlock>;

struct SmemPlan {
  alignas(1024) unsigned char a[kStages][kTileBytes];
  alignas(1024) unsigned char b[kStages][kTileBytes];
  alignas(1024) unsigned char c[kTileBytes];
  u64 full[kStages], empty[kStages];
};

template <class T, bool kARegisters, Bug kBug>
struct Roles {
  const Params& p;
  u32 smem;
  int num_blocks;

  // One thread speaks for a wgmma that reads shared memory, but not for the ldmatrix of others.
  static constexpr int kReaders = kARegisters ? ptx::kWarpgroupSize : 1;

  ATTNHUB_DEVICE u32 a(int s) const { return smem + ptx::offset_of(&SmemPlan::a) + s * kTileBytes; }
  ATTNHUB_DEVICE u32 b(int s) const { return smem + ptx::offset_of(&SmemPlan::b) + s * kTileBytes; }
  ATTNHUB_DEVICE u32 full(int s) const { return smem + ptx::offset_of(&SmemPlan::full) + s * 8; }
  ATTNHUB_DEVICE u32 empty(int s) const { return smem + ptx::offset_of(&SmemPlan::empty) + s * 8; }

  ATTNHUB_DEVICE void init() const {
    if (threadIdx.x == 0) {
      ptx::prefetch_tensor_map(p.a);
      for (int s = 0; s < kStages; ++s) {
        if constexpr (kBug != Bug::kForgetsInit) ptx::mbarrier_init(full(s), 1);
        ptx::mbarrier_init(empty(s), kReaders);
      }
      ptx::fence_mbarrier_init();
    }
    ptx::sync_threads();
  }

  ATTNHUB_DEVICE void produce() const {
    constexpr u32 kExpected = 2 * kTileBytes - (kBug == Bug::kTooFewBytes ? 128 : 0) +
                              (kBug == Bug::kTooManyBytes ? 128 : 0);
    const int row = blockIdx.x * kBlock, column = blockIdx.y * kBlock;
    for (int i = 0; i < num_blocks; ++i) {
      const int s = i % kStages;
      if constexpr (kBug != Bug::kNoEmptyWait) {
        ptx::mbarrier_wait(empty(s), (i / kStages & 1) ^ 1);
      }
      ptx::mbarrier_arrive_expect_tx(full(s), kExpected);
      if constexpr (kBug == Bug::kOverArrive) ptx::mbarrier_arrive(full(s));
      ptx::tma_load(a(s), p.a, full(s), ptx::Coordinates{i * kBlock, row});
      if constexpr (kARegisters) {
        ptx::tma_load(b(s), p.b, full(s), ptx::Coordinates{column, i * kBlock});
      } else {
        ptx::tma_load(b(s), p.b, full(s), ptx::Coordinates{i * kBlock, column});
      }
    }
  }

  ATTNHUB_DEVICE void multiply(int s, float (&d)[32], u32 (&fragment)[4][4]) const {
    const int thread = threadIdx.x % ptx::kWarpgroupSize, lane = thread % 32;
    if constexpr (kARegisters) {
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        using Address = LdmatrixAddress<Ldmatrix::kRowsFirst>;
        const u32 row = thread / 32 * 16 + Address::row(lane);
        const u32 offset = Tile::offset(row, k * 2 + Address::chunk(lane));
        ptx::ldmatrix(fragment[k], a(s) + offset);
      }
    }
    ptx::wgmma_fence();
#pragma unroll
    for (int k = 0; k < kBlock / 16; ++k) {
      if constexpr (kARegisters) {
        const u64 b_mn = WgmmaOperand<Tile, ptx::Major::kMn>::descriptor(b(s), k);
        ptx::wgmma_registers<T, kBlock, ptx::Major::kMn>(d, fragment[k], b_mn, true);
      } else {
        const u64 a_k = WgmmaOperand<Tile, ptx::Major::kK>::descriptor(a(s), k);
        const u64 b_k = WgmmaOperand<Tile, ptx::Major::kK>::descriptor(b(s), k);
        ptx::wgmma_smem<T, kBlock, ptx::Major::kK, ptx::Major::kK>(d, a_k, b_k, true);
      }
    }
    ptx::wgmma_commit();
  }

  ATTNHUB_DEVICE void consume() const {
    float d[32] = {};  // (row % 16 / 8, column) of 64 by 64: see wgmma.cuh
    u32 fragment[4][4];
    for (int i = 0; i < num_blocks; ++i) {
      const int s = i % kStages;
      ptx::mbarrier_wait(full(s), (i / kStages & 1) ^ (kBug == Bug::kWrongPhase ? 1 : 0));
      multiply(s, d, fragment);
      ptx::wgmma_wait<kBug == Bug::kNoWgmmaWait ? 1 : 0>();
      ptx::keep_after_wait(d);
      if (threadIdx.x % ptx::kWarpgroupSize < kReaders) ptx::mbarrier_arrive(empty(s));
    }
    ptx::wgmma_wait<0>();
    store(d);
  }

  ATTNHUB_DEVICE void store(const float (&d)[32]) const {
    const int thread = threadIdx.x % ptx::kWarpgroupSize, lane = thread % 32;
    const u32 c = smem + ptx::offset_of(&SmemPlan::c);
#pragma unroll
    for (int i = 0; i < 32; i += 2) {
      const int row = thread / 32 * 16 + Accumulator::row(lane, i);
      ptx::st_shared(c + Tile::offset(row, i / 4) + lane % 4 * 4, ptx::pack<T>(d[i], d[i + 1]));
    }
    if constexpr (kBug != Bug::kNoProxyFence) ptx::fence_proxy_async();
    ptx::named_barrier_sync(kStored, ptx::kWarpgroupSize);
    if (thread == 0) {
      ptx::tma_store(p.c, c, ptx::Coordinates{int(blockIdx.y) * kBlock, int(blockIdx.x) * kBlock});
      ptx::bulk_commit();
      if constexpr (kBug != Bug::kNoStoreWait) ptx::bulk_wait_read<0>();
    }
  }
};

template <class T, bool kARegisters, Bug kBug = Bug::kNone>
ATTNHUB_DEVICE void gemm(const Params& p) {
  const Roles<T, kARegisters, kBug> roles{p, ptx::dynamic_smem(), (p.k + kBlock - 1) / kBlock};
  roles.init();
  if (ptx::uniform_warp_idx() < 4) {
    ptx::registers_decrease<40>();
    if (threadIdx.x == 0) roles.produce();
  } else {
    ptx::registers_increase<208>();
    roles.consume();
  }
}

}  // namespace gemm_hopper
