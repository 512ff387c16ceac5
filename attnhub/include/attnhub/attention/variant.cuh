// What an attention variant does around and between the two products, as a policy.
//
// A variant is a plain struct in the kernel's parameter block: its members are the tensors and
// numbers that it needs, its flags say which hooks a kernel calls, and a hook that is not called
// costs nothing. A struct that derives from PlainVariant declares what it does otherwise, and keeps
// compiling when hooks are added here. attnhub/variant/cuda_emitter.py writes such structs.
#pragma once

#include "attnhub/common/math.cuh"
#include "attnhub/common/types.cuh"

namespace attnhub {

// Where a score lies. Indices of queries and keys count from the start of their request.
struct ScorePosition {
  i32 request;
  i32 qo_idx, kv_idx;
  i32 qo_head;
  i32 qo_len, kv_len;

  // Of the query among the keys, the last query being at the last key.
  ATTNHUB_DEVICE i32 q_idx() const { return qo_idx + kv_len - qo_len; }
};

// Where an element of a query lies, or of a row of the output.
struct QueryElement {
  i32 request;
  i32 qo_idx;
  i32 qo_head;
  i32 qo_len, kv_len;
  i32 channel;

  ATTNHUB_DEVICE i32 q_idx() const { return qo_idx + kv_len - qo_len; }
};

// Where an element of a key lies.
struct KeyElement {
  i32 request;
  i32 kv_idx;
  i32 kv_head;
  i32 channel;
};

// softmax(scale Q K^T) V, and the least that a variant has. The hooks in the order of a kernel:
struct PlainVariant {
  // query() and key() change each element of Q and K, once dequantised and before any rotation.
  static constexpr bool kTransformsQueries = false;
  static constexpr bool kTransformsKeys = false;
  ATTNHUB_DEVICE float query(const QueryElement&, float x) const { return x; }
  ATTNHUB_DEVICE float key(const KeyElement&, float x) const { return x; }

  // score() changes each score. Those that it sees and gives are in natural units, with the
  // softmax scale in them.
  static constexpr bool kTransformsScores = false;
  ATTNHUB_DEVICE float score(const ScorePosition&, float score) const { return score; }

  // keeps() tells which of the scores that range masks let through count.
  static constexpr bool kMasks = false;
  ATTNHUB_DEVICE bool keeps(const ScorePosition&) const { return true; }

  // Scores become weights by a softmax over the keys that a row sees. Otherwise they are the
  // weights, 0 where masked, and the LSE of every row is -inf.
  static constexpr bool kSoftmax = true;

  // sink() is one more logit of a query head, in natural units, with no value: it joins the sum of
  // the softmax and the LSE, but for rows that see no key.
  static constexpr bool kHasSinks = false;
  ATTNHUB_DEVICE float sink(i32) const { return kMinusInf; }

  // output() changes each element of the output, scales of V in it, before it is rounded. Rows that
  // see no key are 0 whatever it gives.
  static constexpr bool kTransformsOutput = false;
  ATTNHUB_DEVICE float output(const QueryElement&, float x) const { return x; }
};

// cap tanh(score / cap) (Gemma 2).
struct SoftCap : PlainVariant {
  static constexpr bool kTransformsScores = true;
  float cap;

  ATTNHUB_DEVICE float score(const ScorePosition&, float score) const {
    return soft_cap(score, cap);
  }
};

}  // namespace attnhub
