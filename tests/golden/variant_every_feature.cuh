#include "attnhub/attention/variant.cuh"
#include "attnhub/attention/variant_params.cuh"

namespace attnhub {

struct EmittedVariant : PlainVariant {
  static constexpr bool kTransformsQueries = true;
  static constexpr bool kTransformsKeys = true;
  static constexpr bool kTransformsScores = true;
  static constexpr bool kMasks = true;
  static constexpr bool kHasSinks = true;
  static constexpr bool kTransformsOutput = true;

  TensorParam<float, 1> param_alibi_slopes;
  TensorParam<float, 1> param_sinks;
  TensorParam<Bf16, 2> param_table;
  TensorParam<i64, 2> param_document;

  // query_mod = -x / (h + 1.5)
  ATTNHUB_DEVICE float query(const QueryElement& at, float x) const {
    const float t0 = -x;
    const i32 h = at.qo_head;
    const float t1 = float(h);
    const float t2 = t1 + 1.5f;
    const float t3 = ptx::div_full(t0, t2);
    return t3;
  }

  // key_mod = where((d + h_kv) % 2 == 0, x, x * -0.1)
  ATTNHUB_DEVICE float key(const KeyElement& at, float x) const {
    const i32 d = at.channel;
    const i32 h_kv = at.kv_head;
    const i32 t0 = d + h_kv;
    const i32 t1 = floor_mod(t0, 2);
    const bool t2 = t1 == 0;
    const float t3 = x * (-0.1f);
    const float t4 = t2 ? x : t3;
    return t4;
  }

  // score_mod = score - table[h, (kv_idx - q_idx) // -4]
  ATTNHUB_DEVICE float score(const ScorePosition& at, float score) const {
    score = soft_cap(score, 30.0f);
    score += param_alibi_slopes.at(at.qo_head) * float(at.kv_idx - at.q_idx());
    const i32 h = at.qo_head;
    const i32 kv_idx = at.kv_idx;
    const i32 q_idx = at.q_idx();
    const i32 t0 = kv_idx - q_idx;
    const i32 t1 = floor_div(t0, (-4));
    const float t2 = param_table.at(h, t1);
    const float t3 = score - t2;
    return t3;
  }

  // mask_mod = document[b, q_idx] == document[b, kv_idx]
  ATTNHUB_DEVICE bool keeps(const ScorePosition& at) const {
    const i32 b = at.request;
    const i32 q_idx = at.q_idx();
    const i32 t0 = param_document.at(b, q_idx);
    const i32 kv_idx = at.kv_idx;
    const i32 t1 = param_document.at(b, kv_idx);
    const bool t2 = t0 == t1;
    return t2;
  }

  ATTNHUB_DEVICE float sink(i32 qo_head) const {
    return param_sinks.at(qo_head);
  }

  // output_mod = x * sigmoid(x)
  ATTNHUB_DEVICE float output(const QueryElement& at, float x) const {
    const float t0 = sigmoid(x);
    const float t1 = x * t0;
    return t1;
  }
};

}  // namespace attnhub
