// Fused RoPE: which pairs turn, how fast, and from which position on.
#pragma once

#include "attnhub/attention/request.cuh"
#include "attnhub/attention/rope.cuh"
#include "attnhub/common/types.cuh"
#include "attnhub/ptx/memory.cuh"

namespace attnhub::fa2 {

struct NoRotation {
  static constexpr bool kExists = false;
};

template <int kRotaryDim, bool kInterleaved>
struct Rotation {
  static constexpr bool kExists = true;
  using Pairs = RopePairs<kRotaryDim, kInterleaved>;
  const float* frequencies;  // [kRotaryDim / 2]
  const i32* q_offsets;      // [batch]: the position of a request's first query; or null: its own
  const i32* k_offsets;      // [batch]: that of its first key; or null: 0
  float factor;              // of sine and cosine

  ATTNHUB_DEVICE i32 first_query(i32 request_idx, const Request& request) const {
    if (q_offsets == nullptr) return request.kv_len - request.qo_len;
    return ptx::ld_global(q_offsets + request_idx);
  }
  ATTNHUB_DEVICE i32 first_key(i32 request_idx) const {
    return k_offsets == nullptr ? 0 : ptx::ld_global(k_offsets + request_idx);
  }
  ATTNHUB_DEVICE void turn(float (&pair)[2], int idx, i32 position) const {
    turn_at(position, ptx::ld_global_constant(frequencies + idx), factor).apply(pair[0], pair[1]);
  }
};

// The two channels of pair `idx` of a head of kDim, of which those beyond a rotation are neighbours.
template <class R, int kDim>
ATTNHUB_DEVICE void channels_of_pair(int idx, int (&channels)[2]) {
  channels[0] = 2 * idx;
  channels[1] = 2 * idx + 1;
  if constexpr (R::kExists) {
    static_assert(2 * R::Pairs::kCount <= kDim, "a head has the channels that turn");
    if (idx < R::Pairs::kCount) {
      channels[0] = R::Pairs::first(idx);
      channels[1] = R::Pairs::second(idx);
    }
  }
}

}  // namespace attnhub::fa2
