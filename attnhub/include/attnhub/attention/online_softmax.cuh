// Softmax over keys that come block by block (Milakov and Gimelshein 2018; Dao et al. 2022), for the
// rows of a tensor-core product. Works on scores times `scale`, in powers of two: with
// scale = log2(e) x the softmax scale, 2^(scale x score) is the exponential that is meant.
#pragma once

#include "attnhub/attention/mask.cuh"
#include "attnhub/common/types.cuh"
#include "attnhub/ptx/math.cuh"
#include "attnhub/ptx/shuffle.cuh"

namespace attnhub {

// Two rows of a warp's m16n8 tiles. Four lanes hold a row, and each sums its own part of it.
struct OnlineSoftmax {
  // Of the scores seen, before the scale; or lower, as long as no probability passes 2^kSlack. What
  // was summed is rescaled only when that is not enough, which after a few blocks is hardly ever.
  float max[2] = {kMinusInf, kMinusInf};
  float sum[2] = {0.0f, 0.0f};  // this lane's part
  static constexpr float kSlack = 8.0f;

  // Turns a block of scores into probabilities that are not yet divided by their sum. Returns
  // whether any row of the warp needs what was summed before multiplied with shrink[row], which is 1
  // for those that do not. scale > 0.
  //
  // kAnySize: scores may be as large as floats are, as those that a user computed; then the maximum is
  // taken off before the scale is multiplied in, for one more instruction each.
  template <bool kAnySize = false, int kTiles>
  ATTNHUB_DEVICE bool update(float (&scores)[kTiles][4], float scale, float (&shrink)[2]) {
    bool is_raised = false;
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      float highest = scores[0][row * 2];
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
        highest = fmaxf(highest, fmaxf(scores[n][row * 2], scores[n][row * 2 + 1]));
      }
      highest = fmaxf(highest, ptx::shuffle_xor(highest, 1));
      highest = fmaxf(highest, ptx::shuffle_xor(highest, 2));
      // NOTE: false where both are -inf, since -inf - -inf is NaN.
      const bool raises = (highest - max[row]) * scale > kSlack;
      shrink[row] = raises ? ptx::ex2((max[row] - highest) * scale) : 1.0f;
      if (raises) max[row] = highest;
      is_raised = is_raised || raises;
    }
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      // A row that has seen no key yet: nothing is subtracted from -inf.
      const float highest = max[row] == kMinusInf ? 0.0f : max[row];
      const float base = highest * scale;
      sum[row] *= shrink[row];
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
#pragma unroll
        for (int e = row * 2; e < row * 2 + 2; ++e) {
          const float exponent =
              kAnySize ? (scores[n][e] - highest) * scale : scores[n][e] * scale - base;
          scores[n][e] = ptx::ex2(exponent);
          sum[row] += scores[n][e];
        }
      }
    }
    return ptx::any(is_raised);
  }

  // Sums over the four lanes of a row. Afterwards sum is the row's.
  ATTNHUB_DEVICE void finish() {
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      sum[row] += ptx::shuffle_xor(sum[row], 1);
      sum[row] += ptx::shuffle_xor(sum[row], 2);
    }
  }
};

}  // namespace attnhub
