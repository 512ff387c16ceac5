// Operands of wgmma in a SwizzledTile, named 16 of K at a time.
#pragma once

#include "attnhub/common/swizzle.cuh"
#include "attnhub/ptx/wgmma.cuh"

namespace attnhub {

// Tile is a SwizzledTile of 16-bit elements, [m or n, k] if kMajor is kK, and [k, m or n] if kMn.
template <class Tile, ptx::Major kMajor>
struct WgmmaOperand {
  static_assert(Tile::kChunk == 8, "elements of 16 bits");
  static constexpr ptx::SmemSwizzle kSwizzle = Tile::kPanelBytes == 128  ? ptx::SmemSwizzle::k128B
                                               : Tile::kPanelBytes == 64 ? ptx::SmemSwizzle::k64B
                                                                         : ptx::SmemSwizzle::k32B;

  // Of k = 16 step .. 16 step + 15. The tile lies at `address`, aligned to 1024 bytes.
  static ATTNHUB_DEVICE u64 descriptor(u32 address, int step) {
    constexpr u32 kEightRows = 8 * Tile::kPanelBytes;
    constexpr u32 kPanel = Tile::kBytes / Tile::kRowBytes * Tile::kPanelBytes;
    const u32 first =
        kMajor == ptx::Major::kK ? Tile::offset(0, 2 * step) : Tile::offset(16 * step, 0);
    return ptx::smem_descriptor(address + first, kPanel, kEightRows, kSwizzle);
  }
};

}  // namespace attnhub
