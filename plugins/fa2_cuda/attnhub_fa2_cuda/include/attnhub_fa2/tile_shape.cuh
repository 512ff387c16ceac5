// The block sizes of one way of tiling and what follows from them.
#pragma once

#include "attnhub_fa2/format.cuh"

namespace attnhub::fa2 {

// A CTA works on kBlockM packed query rows and kBlockN keys at a time. Warps share the rows kWarpsM
// ways, 16 kTilesM for each, and the keys of a block kWarpsN ways: rows suit prefill; for the few
// rows of decode the keys keep all warps busy.
template <class Format_, int kTilesM_, int kWarpsM_, int kWarpsN_, int kBlockN_, int kStages_>
struct TileShape {
  using Format = Format_;
  using Element = typename Format::Element;
  using Kv = typename Format::Kv;
  using Output = typename Format::Output;
  static constexpr int kDimQk = Format::kDimQk, kDimVo = Format::kDimVo;
  static constexpr int kTilesM = kTilesM_;  // m16 tiles of a warp
  static constexpr int kWarpsM = kWarpsM_, kWarpsN = kWarpsN_;
  static constexpr int kThreads = 32 * kWarpsM * kWarpsN;
  static constexpr int kWarpRows = 16 * kTilesM;
  static constexpr int kBlockM = kWarpRows * kWarpsM, kBlockN = kBlockN_;
  static constexpr int kStages = kStages_;
  static constexpr int kWarpKeys = kBlockN / kWarpsN;  // keys of a block that one warp takes

  using TileQ = RowTile<Element, kBlockM, kDimQk>;
  using TileK = RowTile<Kv, kBlockN, kDimQk>;
  using TileV = RowTile<Kv, kBlockN, kDimVo>;
  using TileOut = RowTile<Element, kBlockM, kDimVo>;  // of outputs that are as wide as an element
  static constexpr int kRowsPerCopy = kThreads / TileQ::kLanes;

  static_assert(kWarpsM == 1 || kWarpsN == 1, "warps share rows or keys, not both");
  static_assert(kWarpKeys % 16 == 0, "one product of P and V is 16 keys deep");
  static_assert(kStages >= 2, "a block is loaded while another is computed");
  static_assert(kBlockN % kRowsPerCopy == 0 && kBlockM % kRowsPerCopy == 0,
                "every thread copies the same number of chunks");
};

}  // namespace attnhub::fa2
