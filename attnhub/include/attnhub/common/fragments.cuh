// Which elements of a tile the lanes of a warp hold, or load by ldmatrix, in mma_m16n8k16 and in
// wgmma.
#pragma once

#include "attnhub/common/types.cuh"

namespace attnhub {

// Element i of what a lane holds of D[16, n]: of mma_m16n8k16, and of the 16 rows that each of the
// four warps has of wgmma's. Its n8 tiles follow one another, 4 elements each.
//
// Of two neighbouring tiles, pack(d[2 i], d[2 i + 1]) for i = 0 .. 3 is the operand A[16, 16] of
// either instruction: a product's result can be multiplied again as it is.
struct Accumulator {
  static ATTNHUB_HOST_DEVICE constexpr int row(int lane, int i) { return lane / 4 + i / 2 % 2 * 8; }
  static ATTNHUB_HOST_DEVICE constexpr int column(int lane, int i) {
    return i / 4 * 8 + lane % 4 * 2 + i % 2;
  }
};

// Whose address a lane gives to an ldmatrix of four matrices: a row of a 16x16 block in shared
// memory, and one of its two chunks of 16 bytes.
//
// kRowsFirst: matrices 0 and 1 are the upper and the lower half of the left chunk.
//   not transposed, block [m, k]: a[0..3] of A
//   transposed, block [k, n]: b0 and b1 of the left 8 of n, then of the right 8
// kChunksFirst: matrices 0 and 1 are the left and the right half of the upper rows.
//   not transposed, block [n, k]: b0 and b1 of the upper 8 of n, then of the lower 8
//   transposed, block [k, m]: a[0..3] of A
enum class Ldmatrix { kRowsFirst, kChunksFirst };

template <Ldmatrix kOrder>
struct LdmatrixAddress {
  static ATTNHUB_HOST_DEVICE constexpr int row(int lane) {
    return kOrder == Ldmatrix::kRowsFirst ? lane % 16 : lane % 8 + lane / 16 * 8;
  }
  static ATTNHUB_HOST_DEVICE constexpr int chunk(int lane) {
    return kOrder == Ldmatrix::kRowsFirst ? lane / 16 : lane / 8 % 2;
  }
};

}  // namespace attnhub
