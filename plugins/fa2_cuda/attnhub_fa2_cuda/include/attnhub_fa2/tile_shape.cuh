// The block sizes of one kernel and what follows from them.
#pragma once

#include "attnhub/common/swizzle.cuh"
#include "attnhub/common/types.cuh"

namespace attnhub::fa2 {

// A CTA works on kBlockM packed query rows and kBlockN keys at a time. Warps share the rows kWarpsM
// ways, 16 kTilesM for each, and the keys of a block kWarpsN ways: rows suit prefill; for the few
// rows of decode the keys keep all warps busy.
template <class T, class Out, int kTilesM_, int kWarpsM_, int kWarpsN_, int kBlockN_, int kStages_>
struct TileShape {
  using Element = T;   // of q, k and v
  using Output = Out;  // of out
  static constexpr int kHeadDim = 128;
  static constexpr int kTilesM = kTilesM_;  // m16 tiles of a warp
  static constexpr int kWarpsM = kWarpsM_, kWarpsN = kWarpsN_;
  static constexpr int kThreads = 32 * kWarpsM * kWarpsN;
  static constexpr int kWarpRows = 16 * kTilesM;
  static constexpr int kBlockM = kWarpRows * kWarpsM, kBlockN = kBlockN_;
  static constexpr int kStages = kStages_;
  static constexpr int kWarpKeys = kBlockN / kWarpsN;  // keys of a block that one warp takes
  static constexpr int kChunk = 16 / int(sizeof(T));   // elements of one 16-byte copy
  static constexpr int kChunks = kHeadDim / kChunk;    // copies of a row
  static constexpr int kRowsPerCopy = kThreads / kChunks;

  using TileQ = SwizzledTile<T, kBlockM, kHeadDim>;
  using TileKv = SwizzledTile<T, kBlockN, kHeadDim>;

  static_assert(kWarpsM == 1 || kWarpsN == 1, "warps share rows or keys, not both");
  static_assert(kWarpKeys % 16 == 0, "one product of P and V is 16 keys deep");
  static_assert(kStages >= 2, "a block is loaded while another is computed");
  static_assert(kBlockN % kRowsPerCopy == 0 && kBlockM % kRowsPerCopy == 0,
                "every thread copies the same number of chunks");
};

}  // namespace attnhub::fa2
