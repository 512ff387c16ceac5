// Writes what the layouts of common/ say, and what ldmatrix, mma and wgmma make of operands laid by
// others, for Python to judge.
#pragma once

#include "attnhub/common/fragments.cuh"
#include "attnhub/common/swizzle.cuh"
#include "attnhub/common/wgmma_operand.cuh"
#include "attnhub/ptx/barrier.cuh"
#include "attnhub/ptx/fence.cuh"
#include "attnhub/ptx/ldmatrix.cuh"
#include "attnhub/ptx/memory.cuh"
#include "attnhub/ptx/mma_sm80.cuh"
#include "attnhub/ptx/mma_sm89.cuh"
#include "attnhub/ptx/thread.cuh"
#include "attnhub/ptx/wgmma.cuh"

namespace layouts {

using namespace attnhub;

struct Params {
  i32* offsets;
  int n;
};

// offsets[i]: where byte i lies.
template <int kBits, int kBase, int kShift>
ATTNHUB_DEVICE void swizzle(const Params& p) {
  for (int i = threadIdx.x; i < p.n; i += blockDim.x) {
    ptx::st_global(p.offsets + i, i32(Swizzle<kBits, kBase, kShift>::apply(i)));
  }
}

// offsets[row, chunk]: where that chunk of a tile of 16 rows of kRowBytes lies.
template <int kRowBytes>
ATTNHUB_DEVICE void tile(const Params& p) {
  using Tile = SwizzledTile<u8, 16, kRowBytes>;
  for (int i = threadIdx.x; i < p.n; i += blockDim.x) {
    const int row = i / Tile::kChunksInRow, chunk = i % Tile::kChunksInRow;
    ptx::st_global(p.offsets + i, i32(Tile::offset(row, chunk)));
  }
}

// offsets[lane, i]: row * 256 + column of element i.
ATTNHUB_DEVICE void accumulator(const Params& p) {
  const int lane = ptx::lane_idx();
  for (int i = 0; i < p.n / 32; ++i) {
    const int place = Accumulator::row(lane, i) * 256 + Accumulator::column(lane, i);
    ptx::st_global(p.offsets + lane * (p.n / 32) + i, place);
  }
}

// offsets[lane, m]: the pair of numbers that ldmatrix gives of a 16x16 block of 0 .. 255, whose
// rows are padded to 24 elements.
template <Ldmatrix kOrder, bool kTransposed>
ATTNHUB_DEVICE void load_block(const Params& p) {
  constexpr int kRow = 48;
  const int lane = ptx::lane_idx();
  const u32 smem = ptx::dynamic_smem();
  for (int i = lane; i < 256; i += 32) ptx::st_shared(smem + i / 16 * kRow + i % 16 * 2, u16(i));
  ptx::sync_warp();
  using Address = LdmatrixAddress<kOrder>;
  u32 r[4];
  ptx::ldmatrix<4, kTransposed>(r, smem + Address::row(lane) * kRow + Address::chunk(lane) * 16);
  for (int m = 0; m < 4; ++m) ptx::st_global(p.offsets + lane * 4 + m, i32(r[m]));
}

struct ProductParams {
  const u32* a;  // [threads, registers]: [steps, threads, 4] of wgmma
  const u32* b;  // [threads, 2]: of wgmma the bytes of a tile, as they lie in shared memory
  float* d;      // [threads, elements]
};

// A product of fragments that were made elsewhere: of 16-bit or of FP8 elements.
template <class T>
ATTNHUB_DEVICE void mma(const ProductParams& p) {
  const int lane = ptx::lane_idx();
  float d[4] = {};
  u32 a[4];
  for (int i = 0; i < 4; ++i) a[i] = ptx::ld_global(p.a + lane * 4 + i);
  const u32 b0 = ptx::ld_global(p.b + lane * 2), b1 = ptx::ld_global(p.b + lane * 2 + 1);
  if constexpr (sizeof(T) == 1) {
    ptx::mma_m16n8k32<T>(d, a, b0, b1);
  } else {
    ptx::mma_m16n8k16<T>(d, a, b0, b1);
  }
  for (int i = 0; i < 4; ++i) ptx::st_global(p.d + lane * 4 + i, d[i]);
}

// D[64, kN] of A in registers and B[kK, kN] in a tile of shared memory, with K or N contiguous.
template <int kN, int kK, ptx::Major kMajor>
ATTNHUB_DEVICE void wgmma(const ProductParams& p) {
  constexpr bool kIsK = kMajor == ptx::Major::kK;
  using Tile = SwizzledTile<Half, kIsK ? kN : kK, kIsK ? kK : kN>;
  const int thread = threadIdx.x;
  const u32 smem = ptx::dynamic_smem();
  for (int i = thread; i < Tile::kBytes / 4; i += 128) {
    ptx::st_shared(smem + i * 4, ptx::ld_global(p.b + i));
  }
  ptx::fence_proxy_async();
  ptx::sync_threads();
  float d[kN / 2] = {};
  u32 a[kK / 16][4];
#pragma unroll
  for (int step = 0; step < kK / 16; ++step) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      a[step][i] = ptx::ld_global(p.a + (step * 128 + thread) * 4 + i);
    }
  }
  ptx::wgmma_fence();
#pragma unroll
  for (int step = 0; step < kK / 16; ++step) {
    const u64 b = WgmmaOperand<Tile, kMajor>::descriptor(smem, step);
    ptx::wgmma_registers<Half, kN, kMajor>(d, a[step], b, true);
  }
  ptx::wgmma_commit();
  ptx::wgmma_wait<0>();
  ptx::keep_after_wait(d);
#pragma unroll
  for (int i = 0; i < kN / 2; ++i) ptx::st_global(p.d + thread * (kN / 2) + i, d[i]);
}

}  // namespace layouts
