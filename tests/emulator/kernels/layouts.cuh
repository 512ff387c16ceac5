// Writes what the layouts of common/swizzle.cuh say, for Python to judge.
#pragma once

#include "attnhub/common/swizzle.cuh"
#include "attnhub/ptx/memory.cuh"

namespace layouts {

using namespace attnhub;

struct Params {
  i32* offsets;
  int n;
};

// offsets[i]: where byte i lies.
template <int kBits, int kBase, int kShift>
__global__ void swizzle(const __grid_constant__ Params p) {
  for (int i = threadIdx.x; i < p.n; i += blockDim.x) {
    ptx::st_global(p.offsets + i, i32(Swizzle<kBits, kBase, kShift>::apply(i)));
  }
}

// offsets[row, chunk]: where that chunk of a tile of 16 rows of kRowBytes lies.
template <int kRowBytes>
__global__ void tile(const __grid_constant__ Params p) {
  using Tile = SwizzledTile<u8, 16, kRowBytes>;
  for (int i = threadIdx.x; i < p.n; i += blockDim.x) {
    const int row = i / Tile::kChunksInRow, chunk = i % Tile::kChunksInRow;
    ptx::st_global(p.offsets + i, i32(Tile::offset(row, chunk)));
  }
}

}  // namespace layouts
