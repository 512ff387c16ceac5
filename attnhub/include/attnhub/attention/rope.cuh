// Rotary position embedding (Su et al. 2021): a pair of channels turns by its token's position.
//
// The frequencies are part of the model: the host computes them once, scaling included, by
// attnhub.rope.frequencies.inverse_frequencies, and kernels get them as an array. The angle is the
// float32 product of position and frequency by definition, as models are trained and served.
#pragma once

#include "attnhub/common/math.cuh"
#include "attnhub/common/types.cuh"
#include "attnhub/ptx/math.cuh"

namespace attnhub {

// Which channels make pair i of a head: neighbours, or one of each half of the rotated ones. The
// channels from kRotaryDim on do not turn.
template <int kRotaryDim, bool kInterleaved>
struct RopePairs {
  static_assert(kRotaryDim >= 2 && kRotaryDim % 2 == 0, "channels turn in pairs");
  static constexpr int kCount = kRotaryDim / 2;

  static ATTNHUB_HOST_DEVICE constexpr int first(int pair) {
    return kInterleaved ? 2 * pair : pair;
  }
  static ATTNHUB_HOST_DEVICE constexpr int second(int pair) {
    return kInterleaved ? 2 * pair + 1 : pair + kCount;
  }
};

// A rotation by some angle, YaRN's factor included.
struct Turn {
  float cos, sin;

  ATTNHUB_DEVICE void apply(float& a, float& b) const {
    const float turned = a * cos - b * sin;
    b = b * cos + a * sin;
    a = turned;
  }
};

// The rotation of a pair at a position. `factor` is YaRN's, 1 elsewhere.
//
// cos and sin are within 2^-20 of those of the float32 angle while that is below 2^23 in size: up
// to 8 million tokens, as frequencies are at most 1.
ATTNHUB_DEVICE Turn turn_at(i32 position, float frequency, float factor = 1.0f) {
  const float rest = without_turns(float(position) * frequency);
  return {ptx::cos_approx(rest) * factor, ptx::sin_approx(rest) * factor};
}

}  // namespace attnhub
