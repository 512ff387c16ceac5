// Which keys a query sees, as a range of keys: causal, sliding window and length are one policy.
#pragma once

#include "attnhub/common/constants.cuh"
#include "attnhub/common/fragments.cuh"
#include "attnhub/common/types.cuh"
#include "attnhub/ptx/thread.cuh"

namespace attnhub {

// Keys [begin, end) of a request.
struct KeyRange {
  i32 begin, end;

  ATTNHUB_HOST_DEVICE bool holds(i32 first, i32 last) const { return begin <= first && last < end; }
};

// Takes the scores of keys that a row does not see out of a warp's product S = Q K^T, of which
// `rows` are the two that this lane holds elements of, as the Accumulator says. They become
// `hidden`: -inf for a softmax, 0 where scores are the weights.
template <int kTiles>
ATTNHUB_DEVICE void mask_scores(float (&scores)[kTiles][4], const KeyRange (&rows)[2],
                                i32 first_key, float hidden = kMinusInf) {
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const i32 key = first_key + Accumulator::column(ptx::lane_idx(), n * 4 + e);
      const KeyRange& row = rows[e / 2];
      if (key < row.begin || key >= row.end) scores[n][e] = hidden;
    }
  }
}

}  // namespace attnhub
