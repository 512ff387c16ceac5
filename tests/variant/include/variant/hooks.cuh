// Kernels that do nothing but call the hooks of a variant: on a grid of positions, on scores as a
// tensor-core product leaves them, and in attention at its plainest.
#pragma once

#include "attnhub/attention/variant.cuh"
#include "attnhub/common/fragments.cuh"
#include "attnhub/ptx/memory.cuh"
#include "attnhub/ptx/thread.cuh"

namespace hooks {

using namespace attnhub;

ATTNHUB_DEVICE i32 first() { return i32(blockIdx.x * blockDim.x + threadIdx.x); }
ATTNHUB_DEVICE i32 stride() { return i32(gridDim.x * blockDim.x); }

template <class Variant>
struct GridParams {
  const float* x;  // [requests, heads, rows, columns]
  float* scores;   // as x; rows are queries, columns keys
  bool* kept;      // as x
  float* queries;  // as x; columns are channels
  float* keys;     // as x; rows are keys
  float* outputs;  // as x
  float* sinks;    // [heads]
  i32 requests, heads, rows, columns;
  i32 shift;  // keys before the first query
  Variant variant;
};

// Every hook at every position.
template <class Variant>
ATTNHUB_DEVICE void grid(const GridParams<Variant>& p) {
  for (i32 i = first(); i < p.requests * p.heads * p.rows * p.columns; i += stride()) {
    const i32 column = i % p.columns, row = i / p.columns % p.rows;
    const i32 head = i / p.columns / p.rows % p.heads, b = i / p.columns / p.rows / p.heads;
    const float x = ptx::ld_global(p.x + i);
    const ScorePosition pair{b, row, column, head, p.rows, p.rows + p.shift};
    const QueryElement element{b, row, head, p.rows, p.rows + p.shift, column};
    ptx::st_global(p.scores + i, p.variant.score(pair, x));
    ptx::st_global(p.kept + i, p.variant.keeps(pair));
    ptx::st_global(p.queries + i, p.variant.query(element, x));
    ptx::st_global(p.keys + i, p.variant.key({b, row, head, column}, x));
    ptx::st_global(p.outputs + i, p.variant.output(element, x));
  }
  for (i32 head = first(); head < p.heads; head += stride()) {
    ptx::st_global(p.sinks + head, p.variant.sink(head));
  }
}

template <class Variant>
struct FragmentParams {
  float* scores;  // [16, 64]
  i32 request, qo_idx, qo_head, qo_len, kv_len;
  Variant variant;
};

// What a warp of an attention kernel does with its scores of 16 queries and 64 keys.
template <class Variant>
ATTNHUB_DEVICE void fragment(const FragmentParams<Variant>& p) {
  constexpr int kTiles = 64 / 8;
  const int lane = ptx::lane_idx();
  float scores[kTiles][4];
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
#pragma unroll
    for (int e = 0; e < 4; ++e) scores[n][e] = ptx::ld_global(p.scores + (n * 4 + e) * 32 + lane);
  }
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const i32 row = Accumulator::row(lane, e), key = Accumulator::column(lane, n * 4 + e);
      const ScorePosition at{p.request, p.qo_idx + row, key, p.qo_head, p.qo_len, p.kv_len};
      if constexpr (Variant::kTransformsScores) scores[n][e] = p.variant.score(at, scores[n][e]);
      if constexpr (Variant::kMasks) {
        if (!p.variant.keeps(at)) scores[n][e] = Variant::kSoftmax ? kMinusInf : 0.0f;
      }
    }
  }
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
#pragma unroll
    for (int e = 0; e < 4; ++e) ptx::st_global(p.scores + (n * 4 + e) * 32 + lane, scores[n][e]);
  }
}

template <class Variant>
struct AttentionParams {
  const float* q;        // [qo_tokens, qo_heads, dim]
  const float* k;        // [kv_tokens, kv_heads, dim]
  const float* v;        // [kv_tokens, kv_heads, dim]
  float* out;            // [qo_tokens, qo_heads, dim]
  float* lse;            // [qo_tokens, qo_heads]
  const i32* qo_indptr;  // [requests + 1]
  const i32* kv_indptr;  // [requests + 1]
  i32 requests, qo_heads, kv_heads, dim;
  float scale;
  Variant variant;
};

// The scores of one query head of one token, and which of them count.
template <class Variant>
struct Row {
  const AttentionParams<Variant>& p;
  i32 request, head, qo_idx, qo_begin, qo_len, kv_begin, kv_len;

  ATTNHUB_DEVICE i32 kv_head() const { return head / (p.qo_heads / p.kv_heads); }
  ATTNHUB_DEVICE i64 query_at() const { return i64(qo_begin + qo_idx) * p.qo_heads + head; }
  ATTNHUB_DEVICE i64 key_at(i32 key) const {
    return (i64(kv_begin + key) * p.kv_heads + kv_head()) * p.dim;
  }
  ATTNHUB_DEVICE QueryElement element(i32 channel) const {
    return {request, qo_idx, head, qo_len, kv_len, channel};
  }
  ATTNHUB_DEVICE ScorePosition pair(i32 key) const {
    return {request, qo_idx, key, head, qo_len, kv_len};
  }
  ATTNHUB_DEVICE bool keeps(i32 key) const {
    return !Variant::kMasks || p.variant.keeps(pair(key));
  }

  ATTNHUB_DEVICE float score(i32 key) const {
    float sum = 0;
    for (i32 d = 0; d < p.dim; ++d) {
      float q = ptx::ld_global(p.q + query_at() * p.dim + d);
      float k = ptx::ld_global(p.k + key_at(key) + d);
      if constexpr (Variant::kTransformsQueries) q = p.variant.query(element(d), q);
      if constexpr (Variant::kTransformsKeys) k = p.variant.key({request, key, kv_head(), d}, k);
      sum += q * k;
    }
    sum *= p.scale;
    if constexpr (Variant::kTransformsScores) sum = p.variant.score(pair(key), sum);
    return sum;
  }

  // The weight of a score is e^(score - max), or the score itself.
  ATTNHUB_DEVICE void attend() const {
    bool is_empty = true;
    float max = Variant::kHasSinks ? p.variant.sink(head) : kMinusInf;
    for (i32 key = 0; key < kv_len; ++key) {
      if (!keeps(key)) continue;
      is_empty = false;
      max = fmaxf(max, score(key));
    }
    if (max == kMinusInf) max = 0.0f;
    float total = Variant::kHasSinks ? expf(p.variant.sink(head) - max) : 0.0f;
    for (i32 key = 0; key < kv_len; ++key) {
      if (keeps(key)) total += expf(score(key) - max);
    }
    for (i32 d = 0; d < p.dim; ++d) {
      float sum = 0;
      for (i32 key = 0; key < kv_len; ++key) {
        if (!keeps(key)) continue;
        const float weight = Variant::kSoftmax ? expf(score(key) - max) / total : score(key);
        sum += weight * ptx::ld_global(p.v + key_at(key) + d);
      }
      if constexpr (Variant::kTransformsOutput) sum = p.variant.output(element(d), sum);
      ptx::st_global(p.out + query_at() * p.dim + d, is_empty ? 0.0f : sum);
    }
    const bool has_lse = Variant::kSoftmax && !is_empty;
    ptx::st_global(p.lse + query_at(), has_lse ? max + logf(total) : kMinusInf);
  }
};

template <class Variant>
ATTNHUB_DEVICE void attention(const AttentionParams<Variant>& p) {
  const i32 tokens = ptx::ld_global(p.qo_indptr + p.requests);
  for (i32 i = first(); i < tokens * p.qo_heads; i += stride()) {
    const i32 token = i / p.qo_heads;
    i32 request = 0;
    while (token >= ptx::ld_global(p.qo_indptr + request + 1)) ++request;
    const i32 qo_begin = ptx::ld_global(p.qo_indptr + request);
    const i32 kv_begin = ptx::ld_global(p.kv_indptr + request);
    const i32 qo_len = ptx::ld_global(p.qo_indptr + request + 1) - qo_begin;
    const i32 kv_len = ptx::ld_global(p.kv_indptr + request + 1) - kv_begin;
    Row<Variant>{p,        request, i % p.qo_heads, token - qo_begin,
                 qo_begin, qo_len,  kv_begin,       kv_len}
        .attend();
  }
}

}  // namespace hooks
