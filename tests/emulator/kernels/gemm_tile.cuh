// C = A B^T with mma.sync, by four warps, two by two: cp.async in several stages, swizzled tiles,
// ldmatrix. Any M and N; K is a multiple of 8. kBug plants one fault for the emulator to find.
#pragma once

#include "attnhub/common/fragments.cuh"
#include "attnhub/common/swizzle.cuh"
#include "attnhub/ptx/barrier.cuh"
#include "attnhub/ptx/cp_async.cuh"
#include "attnhub/ptx/ldmatrix.cuh"
#include "attnhub/ptx/memory.cuh"
#include "attnhub/ptx/mma_sm80.cuh"
#include "attnhub/ptx/thread.cuh"

namespace gemm_tile {

using namespace attnhub;

enum class Bug { kNone, kNoBarrier, kNoWait, kWrongSwizzle, kSmemTooLow, kNoRowMask, kNoZeroFill };

struct Params {
  const void* a;  // [m, k]
  const void* b;  // [n, k]
  float* c;       // [m, n]
  int m, n, k;
};

template <class T, int kM, int kN, int kK, int kNumStages>
struct Traits {
  using Element = T;
  static constexpr int kBlockM = kM, kBlockN = kN, kBlockK = kK, kStages = kNumStages;
  using TileA = SwizzledTile<T, kBlockM, kBlockK>;
  using TileB = SwizzledTile<T, kBlockN, kBlockK>;
  static_assert(kBlockM % 32 == 0 && kBlockN % 32 == 0, "two by two warps of 16 by 16 products");
  static_assert(kBlockK % 16 == 0, "one product is 16 deep");

  struct SmemPlan {
    alignas(1024) unsigned char a[kStages][TileA::kBytes];
    alignas(1024) unsigned char b[kStages][TileB::kBytes];
  };
};

// Copies rows [row0, row0 + kRows) and one block of columns; what lies outside becomes zero.
template <class Tile, class T, int kRows, Bug kBug>
ATTNHUB_DEVICE void load_tile(u32 to, const T* from, int row0, int num_rows, int k0, int k) {
  for (int i = threadIdx.x; i < kRows * Tile::kChunksInRow; i += blockDim.x) {
    const int row = i / Tile::kChunksInRow, chunk = i % Tile::kChunksInRow;
    const int column = k0 + chunk * Tile::kChunk;
    bool is_valid = column < k;
    if constexpr (kBug != Bug::kNoRowMask) is_valid = is_valid && row0 + row < num_rows;
    if constexpr (kBug == Bug::kNoZeroFill) is_valid = row0 + row < num_rows;
    ptx::cp_async<16>(to + Tile::offset(row, chunk), from + i64(row0 + row) * k + column, is_valid);
  }
}

template <class Traits, Bug kBug = Bug::kNone>
struct Mainloop {
  using T = typename Traits::Element;
  using TileA = typename Traits::TileA;
  using TileB = typename Traits::TileB;
  using Plan = typename Traits::SmemPlan;
  static constexpr int kTilesM = Traits::kBlockM / 32, kTilesN = Traits::kBlockN / 16;

  const Params& p;
  u32 smem;
  int row0, column0;
  float acc[kTilesM][kTilesN][4];  // (m16 tiles, n8 tiles, fragment)

  ATTNHUB_DEVICE u32 stage_a(int s) const {
    return smem + ptx::offset_of(&Plan::a) + s * TileA::kBytes;
  }
  ATTNHUB_DEVICE u32 stage_b(int s) const {
    return smem + ptx::offset_of(&Plan::b) + s * TileB::kBytes;
  }

  ATTNHUB_DEVICE void load(int block) {
    const int s = block % Traits::kStages, k0 = block * Traits::kBlockK;
    if (k0 < p.k) {
      load_tile<TileA, T, Traits::kBlockM, kBug>(stage_a(s), static_cast<const T*>(p.a), row0, p.m,
                                                 k0, p.k);
      load_tile<TileB, T, Traits::kBlockN, kBug>(stage_b(s), static_cast<const T*>(p.b), column0,
                                                 p.n, k0, p.k);
    }
    ptx::cp_async_commit();  // also when empty, so that the count of groups stays the same
  }

  template <class Tile>
  static ATTNHUB_DEVICE u32 address(u32 tile, int row, int chunk) {
    if constexpr (kBug == Bug::kWrongSwizzle) return tile + row * Tile::kRowBytes + chunk * 16;
    return tile + Tile::offset(row, chunk);
  }

  ATTNHUB_DEVICE void multiply(int s) {
    const int lane = ptx::lane_idx(), warp = ptx::warp_idx();
    const int warp_m = warp % 2 * 16, warp_n = warp / 2 * 16;
    using AddressA = LdmatrixAddress<Ldmatrix::kRowsFirst>;
    using AddressB = LdmatrixAddress<Ldmatrix::kChunksFirst>;
#pragma unroll
    for (int k = 0; k < Traits::kBlockK / 16; ++k) {
      const int chunk = k * 2;
      u32 a[kTilesM][4], b[kTilesN / 2][4];
#pragma unroll
      for (int i = 0; i < kTilesM; ++i) {
        const int row = warp_m + i * 32 + AddressA::row(lane);
        ptx::ldmatrix(a[i], address<TileA>(stage_a(s), row, chunk + AddressA::chunk(lane)));
      }
#pragma unroll
      for (int j = 0; j < kTilesN / 2; ++j) {
        const int row = warp_n + j * 32 + AddressB::row(lane);
        ptx::ldmatrix(b[j], address<TileB>(stage_b(s), row, chunk + AddressB::chunk(lane)));
      }
#pragma unroll
      for (int i = 0; i < kTilesM; ++i) {
#pragma unroll
        for (int j = 0; j < kTilesN; ++j) {
          ptx::mma_m16n8k16<T>(acc[i][j], a[i], b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1]);
        }
      }
    }
  }

  ATTNHUB_DEVICE void run() {
    const int num_blocks = (p.k + Traits::kBlockK - 1) / Traits::kBlockK;
    for (int i = 0; i < Traits::kStages - 1; ++i) load(i);
    for (int i = 0; i < num_blocks; ++i) {
      constexpr int kPending = Traits::kStages - 2;
      ptx::cp_async_wait<kBug == Bug::kNoWait ? kPending + 1 : kPending>();
      if constexpr (kBug != Bug::kNoBarrier) ptx::sync_threads();
      load(i + Traits::kStages - 1);
      multiply(i % Traits::kStages);
    }
  }

  ATTNHUB_DEVICE void store() const {
    const int lane = ptx::lane_idx(), warp = ptx::warp_idx();
#pragma unroll
    for (int i = 0; i < kTilesM; ++i) {
#pragma unroll
      for (int j = 0; j < kTilesN; ++j) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const int row = row0 + warp % 2 * 16 + i * 32 + Accumulator::row(lane, e);
          const int column =
              column0 + warp / 2 * 16 + j / 2 * 32 + j % 2 * 8 + Accumulator::column(lane, e);
          if (row < p.m && column < p.n)
            ptx::st_global(p.c + i64(row) * p.n + column, acc[i][j][e]);
        }
      }
    }
  }
};

template <class Traits, Bug kBug = Bug::kNone>
ATTNHUB_DEVICE void gemm(const Params& p) {
  const u32 smem = ptx::dynamic_smem() + (kBug == Bug::kSmemTooLow ? 1024 : 0);
  Mainloop<Traits, kBug> mainloop{
      p, smem, int(blockIdx.x) * Traits::kBlockM, int(blockIdx.y) * Traits::kBlockN, {}};
  mainloop.run();
  mainloop.store();
}

using Small = Traits<Half, 64, 64, 32, 3>;
using Wide = Traits<Bf16, 128, 128, 64, 3>;

}  // namespace gemm_tile
