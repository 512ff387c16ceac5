// Rows [tokens, heads, dim] of any strides as a memory-bound kernel visits them: the lanes of a warp
// share whole rows, each lane in pieces of 16 bytes.
#pragma once

#include "attnhub/common/fastdiv.cuh"
#include "attnhub/common/types.cuh"
#include "attnhub/ptx/convert.cuh"
#include "attnhub/ptx/memory.cuh"
#include "attnhub/ptx/thread.cuh"

namespace attnhub {

// How lanes share rows of kDim elements: chunk c of a row belongs to its lane c % kLanes, and a lane
// holds kHeld chunks at a time, in each of kSteps steps. Whatever all lanes of a row repeat, such as
// its addresses, is done once for kHeld chunks.
template <class T, int kDim, int kLanes_, int kHeld_>
struct RowShape {
  using Element = T;
  static constexpr int kLanes = kLanes_, kHeld = kHeld_;
  static constexpr int kChunk = 16 / int(sizeof(T));  // elements
  static constexpr int kChunks = kDim / kChunk;
  static constexpr int kSteps = (kChunks + kLanes * kHeld - 1) / (kLanes * kHeld);
  static constexpr int kSize = kHeld * kChunk;  // elements that a lane holds
  static constexpr int kRowsOfWarp = ptx::kWarpSize / kLanes;
  static_assert(kDim % kChunk == 0, "kDim: rows must be whole chunks of 16 bytes");
  static_assert(kLanes * kRowsOfWarp == ptx::kWarpSize, "kLanes: a power of two, at most 32");
};

// The rows of [tokens, heads] from `first` on, `step` apart, without a division for each.
struct RowWalk {
  i64 token;
  i32 head;
  i32 token_step, head_step, num_heads;

  ATTNHUB_DEVICE RowWalk(u32 first, u32 step, FastDiv heads) {
    const u32 tokens = heads.divide(first), tokens_on = heads.divide(step);
    token = tokens;
    head = i32(first - tokens * heads.divisor);
    token_step = i32(tokens_on);
    head_step = i32(step - tokens_on * heads.divisor);
    num_heads = i32(heads.divisor);
  }

  ATTNHUB_DEVICE void advance() {
    token += token_step;
    head += head_step;
    if (head < num_heads) return;
    head -= num_heads;
    ++token;
  }
};

// What a lane holds of a row. kIsAligned: every row begins at a multiple of 16 bytes, which a view
// that a caller gives need not do.
template <class Shape, bool kIsAligned>
struct RowPiece {
  using T = typename Shape::Element;
  using Chunk = Vec<T, Shape::kChunk>;

  Chunk chunks[Shape::kHeld];

  static ATTNHUB_DEVICE int chunk_idx(int i, int step, int lane) {
    return (step * Shape::kHeld + i) * Shape::kLanes + lane;
  }

  // From a row whose first element is `row`.
  ATTNHUB_DEVICE void load(const T* row, int step, int lane) {
#pragma unroll
    for (int i = 0; i < Shape::kHeld; ++i) {
      const int idx = chunk_idx(i, step, lane);
      if (idx >= Shape::kChunks) continue;
      const T* from = row + idx * Shape::kChunk;
      if constexpr (kIsAligned) {
        chunks[i] = ptx::ld_global(reinterpret_cast<const Chunk*>(from));
      } else {
#pragma unroll
        for (int e = 0; e < Shape::kChunk; ++e) chunks[i][e] = ptx::ld_global(from + e);
      }
    }
  }

  ATTNHUB_DEVICE void store(T* row, int step, int lane) const {
#pragma unroll
    for (int i = 0; i < Shape::kHeld; ++i) {
      const int idx = chunk_idx(i, step, lane);
      if (idx >= Shape::kChunks) continue;
      T* to = row + idx * Shape::kChunk;
      if constexpr (kIsAligned) {
        ptx::st_global(reinterpret_cast<Chunk*>(to), chunks[i]);
      } else {
#pragma unroll
        for (int e = 0; e < Shape::kChunk; ++e) ptx::st_global(to + e, chunks[i][e]);
      }
    }
  }

  ATTNHUB_DEVICE void widen(float (&values)[Shape::kSize]) const {
#pragma unroll
    for (int i = 0; i < Shape::kHeld; ++i) {
      const auto words = bit_cast<Vec<u32, 4>>(chunks[i]);
#pragma unroll
      for (int w = 0; w < 4; ++w) {
        if constexpr (kIsSame<T, float>) {
          values[i * 4 + w] = bit_cast<float>(words[w]);
        } else {
          const auto pair = ptx::unpack<T>(words[w]);
          values[i * 8 + w * 2] = pair[0];
          values[i * 8 + w * 2 + 1] = pair[1];
        }
      }
    }
  }

  ATTNHUB_DEVICE void narrow(const float (&values)[Shape::kSize]) {
#pragma unroll
    for (int i = 0; i < Shape::kHeld; ++i) {
      Vec<u32, 4> words;
#pragma unroll
      for (int w = 0; w < 4; ++w) {
        if constexpr (kIsSame<T, float>) {
          words[w] = bit_cast<u32>(values[i * 4 + w]);
        } else {
          words[w] = ptx::pack<T>(values[i * 8 + w * 2], values[i * 8 + w * 2 + 1]);
        }
      }
      chunks[i] = bit_cast<Chunk>(words);
    }
  }
};

}  // namespace attnhub
