// What a kernel reads and writes, whatever its tiles: the elements of its tensors, and how many of
// them a head has.
#pragma once

#include "attnhub/common/swizzle.cuh"
#include "attnhub/common/types.cuh"
#include "attnhub/ptx/cp_async.cuh"
#include "attnhub/ptx/fp8.cuh"
#include "attnhub/ptx/thread.cuh"

namespace attnhub::fa2 {

template <class T, class Kv_, class Out, int kDimQk_, int kDimVo_>
struct Format {
  using Element = T;   // of q, and of the operands of products
  using Kv = Kv_;      // of k and v where they are stored: T, or an FP8
  using Output = Out;  // of out
  static constexpr int kDimQk = kDimQk_, kDimVo = kDimVo_;
  static constexpr bool kIsFp8 = ptx::kIsFp8<Kv>;
  static_assert(kDimQk % 16 == 0 && kDimVo % 16 == 0, "a product is 16 channels deep");

  // The channel of output that this lane sums in element e, 0 or 1 of either row, of n8 tile n.
  // NOTE: of FP8 values a pair of tiles takes the even and the odd channels of 16, as
  // Fp8Pairs::kAlternate says.
  static ATTNHUB_DEVICE int channel(int lane, int n, int e) {
    if constexpr (kIsFp8) return n / 2 * 16 + lane % 4 * 4 + e * 2 + n % 2;
    return n * 8 + lane % 4 * 2 + e;
  }
};

// A tile [kRows, kDim] in shared memory. Its rows are whole panels of 128 bytes, so that a swizzle
// fits any dimension; what a head does not have of its last panel is neither written nor read.
template <class T, int kDim>
constexpr int kPaddedDim = (kDim * int(sizeof(T)) + 127) / 128 * 128 / int(sizeof(T));

template <class T, int kRows_, int kDim>
struct RowTile : SwizzledTile<T, kRows_, kPaddedDim<T, kDim>> {
  static constexpr int kRows = kRows_;
  static constexpr int kLanes = 8;  // that move one row: 16 bytes each of a panel
  static constexpr int kChunks = kDim * int(sizeof(T)) / 16;
  static constexpr int kPanels = (kChunks + kLanes - 1) / kLanes;

  // Calls visit(chunk, byte offset from the row's chunk of this lane in the first panel).
  template <class Visit>
  static ATTNHUB_DEVICE void each_chunk(Visit visit) {
    const int lane = ptx::lane_idx() % kLanes;
#pragma unroll
    for (int panel = 0; panel < kPanels; ++panel) {
      const int chunk = panel * kLanes + lane;
      if (panel * kLanes + kLanes <= kChunks || chunk < kChunks) {
        visit(chunk, u32(panel * kRows * 128));
      }
    }
  }

  // This lane's part of a row, to where its chunk of the first panel lies; zeros if it is not valid.
  static ATTNHUB_DEVICE void copy_row(u32 to, const T* row, bool is_valid) {
    each_chunk([&](int chunk, u32 offset) {
      ptx::cp_async<16>(to + offset, row + chunk * RowTile::kChunk, is_valid);
    });
  }
};

}  // namespace attnhub::fa2
