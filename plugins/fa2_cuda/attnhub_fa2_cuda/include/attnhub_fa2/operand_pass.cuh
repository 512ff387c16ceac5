// Changes operands where they lie in shared memory: what a variant does to elements of Q and K, their
// rotation, and the order of columns that products with FP8 want.
#pragma once

#include "attnhub/attention/variant.cuh"
#include "attnhub/ptx/convert.cuh"
#include "attnhub/ptx/memory.cuh"
#include "attnhub_fa2/rotation.cuh"
#include "attnhub_fa2/tile_shape.cuh"

namespace attnhub::fa2 {

// Calls change(row, idx, channels, pair) for all pairs of channels that this thread has of a tile,
// idx being the number of the pair, and puts back what it leaves in `pair`.
template <class Tile, class T, int kDim, int kThreads, class R, class Change>
ATTNHUB_DEVICE void change_pairs(u32 tile, Change change) {
  for (int i = threadIdx.x; i < Tile::kRows * (kDim / 2); i += kThreads) {
    const int row = i / (kDim / 2), idx = i % (kDim / 2);
    int channels[2];
    channels_of_pair<R, kDim>(idx, channels);
    u32 at[2];
    float pair[2];
    for (int e = 0; e < 2; ++e) {
      at[e] = tile + Tile::offset(row, channels[e] / Tile::kChunk) +
              channels[e] % Tile::kChunk * u32(sizeof(T));
      pair[e] = ptx::to_float(ptx::ld_shared<T>(at[e]));
    }
    change(row, idx, channels, pair);
    const auto rounded = bit_cast<Vec<u16, 2>>(ptx::pack<T>(pair[0], pair[1]));
    for (int e = 0; e < 2; ++e) ptx::st_shared(at[e], rounded[e]);
  }
}

// The columns of each 16 in the order that Fp8Pairs::kNeighbours asks of the other operand.
template <class Tile, int kDim, int kThreads>
ATTNHUB_DEVICE void reorder_for_fp8(u32 tile) {
  using Chunk = Vec<u32, 4>;  // eight elements of 16 bits
  for (int i = threadIdx.x; i < Tile::kRows * (kDim / 16); i += kThreads) {
    const int row = i / (kDim / 16), chunk = i % (kDim / 16) * 2;
    const u32 left_at = tile + Tile::offset(row, chunk);
    const u32 right_at = tile + Tile::offset(row, chunk + 1);
    const auto left = ptx::ld_shared<Chunk>(left_at), right = ptx::ld_shared<Chunk>(right_at);
    ptx::st_shared(left_at, Chunk{left[0], left[2], right[0], right[2]});
    ptx::st_shared(right_at, Chunk{left[1], left[3], right[1], right[3]});
  }
}

}  // namespace attnhub::fa2
