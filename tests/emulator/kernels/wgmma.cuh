// D = A B^T of one warpgroup in all forms of wgmma: A in shared memory or in registers, either
// dimension of an operand contiguous.
#pragma once

#include "attnhub/common/fragments.cuh"
#include "attnhub/common/swizzle.cuh"
#include "attnhub/common/wgmma_operand.cuh"
#include "attnhub/ptx/barrier.cuh"
#include "attnhub/ptx/fence.cuh"
#include "attnhub/ptx/ldmatrix.cuh"
#include "attnhub/ptx/memory.cuh"
#include "attnhub/ptx/thread.cuh"
#include "attnhub/ptx/wgmma.cuh"

namespace wgmma {

using namespace attnhub;
using ptx::Major;

constexpr int kM = 64, kK = 64;

// Both operands, each with one and with the other dimension contiguous.
struct Params {
  const void* a;     // [kM, kK]
  const void* a_mn;  // [kK, kM]
  const void* b;     // [kN, kK]
  const void* b_mn;  // [kK, kN], rows padded to a multiple of 64
  float* d;          // [6, kM, kN]
};

template <class Tile>
ATTNHUB_DEVICE void fill(u32 tile, const void* from) {
  for (int i = threadIdx.x; i < Tile::kBytes / 16; i += blockDim.x) {
    const u32 to = tile + Tile::offset(i / Tile::kChunksInRow, i % Tile::kChunksInRow);
    ptx::st_shared(to, ptx::ld_global(static_cast<const Vec<u32, 4>*>(from) + i));
  }
}

template <class T, int kN>
struct Operands {
  using A = SwizzledTile<T, kM, kK>;
  using AMn = SwizzledTile<T, kK, kM>;
  using B = SwizzledTile<T, kN, kK>;
  using BMn = SwizzledTile<T, kK, (kN + 63) / 64 * 64>;

  struct SmemPlan {
    alignas(1024) unsigned char a[A::kBytes];
    alignas(1024) unsigned char a_mn[AMn::kBytes];
    alignas(1024) unsigned char b[B::kBytes];
    alignas(1024) unsigned char b_mn[BMn::kBytes];
  };

  const Params& p;
  u32 a = ptx::dynamic_smem() + ptx::offset_of(&SmemPlan::a);
  u32 a_mn = ptx::dynamic_smem() + ptx::offset_of(&SmemPlan::a_mn);
  u32 b = ptx::dynamic_smem() + ptx::offset_of(&SmemPlan::b);
  u32 b_mn = ptx::dynamic_smem() + ptx::offset_of(&SmemPlan::b_mn);

  ATTNHUB_DEVICE void load() const {
    fill<A>(a, p.a);
    fill<AMn>(a_mn, p.a_mn);
    fill<B>(b, p.b);
    fill<BMn>(b_mn, p.b_mn);
    ptx::fence_proxy_async();
    ptx::sync_threads();
  }

  template <Major kA>
  ATTNHUB_DEVICE u64 descriptor_a(int step) const {
    if constexpr (kA == Major::kK) {
      return WgmmaOperand<A, kA>::descriptor(a, step);
    } else {
      return WgmmaOperand<AMn, kA>::descriptor(a_mn, step);
    }
  }

  template <Major kB>
  ATTNHUB_DEVICE u64 descriptor_b(int step) const {
    if constexpr (kB == Major::kK) {
      return WgmmaOperand<B, kB>::descriptor(b, step);
    } else {
      return WgmmaOperand<BMn, kB>::descriptor(b_mn, step);
    }
  }

  // `product` adds a step of K to D, or overwrites it in the first step, which finds NaN there.
  template <class Product>
  ATTNHUB_DEVICE void multiply(Product product) const {
    float d[kN / 2];
#pragma unroll
    for (int i = 0; i < kN / 2; ++i) d[i] = bit_cast<float>(0x7fffffffu);
    ptx::wgmma_fence();
#pragma unroll
    for (int step = 0; step < kK / 16; ++step) product(d, step);
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>();
    ptx::keep_after_wait(d);
    const int lane = ptx::lane_idx();
#pragma unroll
    for (int i = 0; i < kN / 2; ++i) {
      const int row = int(blockIdx.x) * kM + ptx::warp_idx() * 16 + Accumulator::row(lane, i);
      ptx::st_global(p.d + row * kN + Accumulator::column(lane, i), d[i]);
    }
  }

  template <Major kA, Major kB>
  ATTNHUB_DEVICE void multiply_smem() const {
    multiply([&](float (&d)[kN / 2], int step) {
      const u64 of_a = descriptor_a<kA>(step), of_b = descriptor_b<kB>(step);
      ptx::wgmma_smem<T, kN, kA, kB>(d, of_a, of_b, step > 0);
    });
  }

  template <Major kB>
  ATTNHUB_DEVICE void multiply_registers() const {
    using Address = LdmatrixAddress<Ldmatrix::kRowsFirst>;
    u32 fragments[kK / 16][4];
#pragma unroll
    for (int step = 0; step < kK / 16; ++step) {
      const int row = ptx::warp_idx() * 16 + Address::row(ptx::lane_idx());
      const int chunk = 2 * step + Address::chunk(ptx::lane_idx());
      ptx::ldmatrix(fragments[step], a + A::offset(row, chunk));
    }
    multiply([&](float (&d)[kN / 2], int step) {
      ptx::wgmma_registers<T, kN, kB>(d, fragments[step], descriptor_b<kB>(step), step > 0);
    });
  }
};

// Each CTA one form: d[blockIdx.x].
template <class T, int kN>
ATTNHUB_DEVICE void products(const Params& p) {
  const Operands<T, kN> operands{p};
  operands.load();
  switch (blockIdx.x) {
    case 0:
      return operands.template multiply_smem<Major::kK, Major::kK>();
    case 1:
      return operands.template multiply_smem<Major::kK, Major::kMn>();
    case 2:
      return operands.template multiply_smem<Major::kMn, Major::kK>();
    case 3:
      return operands.template multiply_smem<Major::kMn, Major::kMn>();
    case 4:
      return operands.template multiply_registers<Major::kK>();
    case 5:
      return operands.template multiply_registers<Major::kMn>();
  }
}

}  // namespace wgmma
