#include "attnhub/attention/variant.cuh"
#include "attnhub/attention/variant_params.cuh"

namespace attnhub {

struct EmittedVariant : PlainVariant {
  static constexpr bool kTransformsScores = true;
  static constexpr bool kSoftmax = false;

  ScalarParam<float> param_bias;

  // score_mod = sigmoid(score + bias)
  ATTNHUB_DEVICE float score(const ScorePosition& at, float score) const {
    const float t0 = param_bias.get();
    const float t1 = score + t0;
    const float t2 = sigmoid(t1);
    return t2;
  }
};

}  // namespace attnhub
