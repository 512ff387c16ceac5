// Where a 16-byte chunk of a row-major tile lies in shared memory, so that ldmatrix and TMA meet
// no bank conflicts.
#pragma once

#include "attnhub/common/types.cuh"

namespace attnhub {

// XORs kBits bits, from bit kBase up, with the kBits bits that lie kShift above them: an
// involution, and the same function as CuTe's Swizzle<kBits, kBase, kShift>.
template <int kBits, int kBase, int kShift>
struct Swizzle {
  static_assert(kBits >= 0 && kBase >= 0 && kShift >= kBits, "source and target bits may not meet");
  static constexpr u32 kMask = ((1u << kBits) - 1) << (kBase + kShift);

  static ATTNHUB_HOST_DEVICE constexpr u32 apply(u32 offset) {
    return offset ^ ((offset & kMask) >> kShift);
  }
};

// The swizzle of byte offsets that fits rows of kRowBytes; TMA calls these 32B, 64B and 128B.
template <int kRowBytes>
struct RowSwizzle;
template <>
struct RowSwizzle<32> : Swizzle<1, 4, 3> {};
template <>
struct RowSwizzle<64> : Swizzle<2, 4, 3> {};
template <>
struct RowSwizzle<128> : Swizzle<3, 4, 3> {};

// A tile [kRows, kColumns] of T in shared memory. Rows wider than 128 bytes are cut into panels of
// kPanelBytes, one after the other, since a swizzle spans at most 128 bytes.
template <class T, int kRows, int kColumns>
struct SwizzledTile {
  static constexpr int kRowBytes = kColumns * int(sizeof(T));
  static constexpr int kPanelBytes = kRowBytes < 128 ? kRowBytes : 128;
  static constexpr int kChunk = 16 / int(sizeof(T));  // elements in one chunk of 16 bytes
  static constexpr int kChunksInPanel = kPanelBytes / 16;
  static constexpr int kChunksInRow = kRowBytes / 16;
  static constexpr int kBytes = kRows * kRowBytes;
  static_assert(kRowBytes % kPanelBytes == 0, "rows must be 32, 64 or a multiple of 128 bytes");
  static_assert(kRows % 8 == 0, "the swizzle repeats every 8 rows of 128 bytes");

  // Byte offset of a chunk from the base of the tile, which is aligned to 1024 bytes.
  static ATTNHUB_HOST_DEVICE constexpr u32 offset(u32 row, u32 chunk) {
    const u32 panel = chunk / kChunksInPanel;
    const u32 linear = row * kPanelBytes + (chunk % kChunksInPanel) * 16;
    return panel * (kRows * kPanelBytes) + RowSwizzle<kPanelBytes>::apply(linear);
  }

  // From the address of a chunk to that of another, `rows` rows and `chunks` chunks further, with
  // one instruction, or none where `chunks` is a whole panel. Rows are a multiple of 8, and no bit
  // of the first chunk's index is one of `chunks`.
  static ATTNHUB_HOST_DEVICE constexpr u32 step(u32 address, u32 rows, u32 chunks) {
    const u32 panel = chunks / kChunksInPanel;
    return (address ^ (chunks % kChunksInPanel * 16)) + rows * kPanelBytes +
           panel * (kRows * kPanelBytes);
  }
};

}  // namespace attnhub
