// A row of output on its way to memory: the merge of what warps, and then pieces, summed over their
// keys, and what a variant does at the end.
#pragma once

#include "attnhub/attention/state.cuh"
#include "attnhub/attention/variant.cuh"
#include "attnhub/common/constants.cuh"
#include "attnhub/ptx/math.cuh"
#include "attnhub/ptx/thread.cuh"
#include "attnhub_fa2/params.cuh"
#include "attnhub_fa2/query_tile.cuh"

namespace attnhub::fa2 {

// Whether it matters by itself that a row sees no key, not only through its sum.
template <class Variant>
constexpr bool kTellsEmptyRows =
    !Variant::kSoftmax || Variant::kHasSinks || Variant::kTransformsOutput;

// NOTE: -inf says of a partial result that it saw no key. One that saw keys of which every score is
// -inf has a sum of 0 too; where it matters it says this, which no other state notices when they are
// merged.
constexpr float kOnlyMinusInf = -0x1.fffffep127f;

// The columns that this lane has of a row which a warp holds: four of each 128.
template <int kDim>
struct LaneColumns {
  static constexpr int kSteps = (kDim + 127) / 128;
  static constexpr int kSize = 4 * kSteps;

  // Calls visit(column, first element of the lane's share) for those that a row has.
  template <class Visit>
  static ATTNHUB_DEVICE void each(Visit visit) {
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      const int column = s * 128 + ptx::lane_idx() * 4;
      if (s * 128 + 128 <= kDim || column < kDim) visit(column, s * 4);
    }
  }
};

template <class P>
struct RowState : MergedState<LaneColumns<P::Format::kDimVo>::kSize> {
  using Variant = typename P::Variant;

  // Without a softmax results are sums, and all that an LSE says is whether there was a key.
  ATTNHUB_DEVICE void finish() {
    if constexpr (Variant::kSoftmax) {
      const bool has_keys = this->lse != kMinusInf;
      this->normalise();
      if (kTellsEmptyRows<Variant> && has_keys && this->lse == kMinusInf) {
        this->lse = kOnlyMinusInf;
      }
    }
  }
};

// The weights of states that are merged one after the other, where each thread has elements of many
// rows: relative to the largest LSE so far, as those of MergedState.
struct MergeWeights {
  float lse = kMinusInf, sum = 0.0f;

  // What the merge so far, and the state to come, are multiplied by.
  ATTNHUB_DEVICE void add(float its_lse, float& kept, float& added) {
    const float highest = fmaxf(lse, its_lse);
    const float base = highest == kMinusInf ? 0.0f : highest;  // -inf - -inf is NaN
    kept = ptx::ex2((lse - base) * kLog2E);
    added = its_lse == kMinusInf ? 0.0f : ptx::ex2((its_lse - base) * kLog2E);
    sum = sum * kept + added;
    lse = highest;
  }
  ATTNHUB_DEVICE float merged_lse() const { return sum == 0.0f ? lse : lse + ptx::lg2(sum) * kLn2; }
  ATTNHUB_DEVICE float inverse() const { return sum == 0.0f ? 0.0f : ptx::rcp(sum); }
};

// What the end of a row is multiplied by, and its LSE as the caller sees it.
template <class P>
struct RowEnd {
  using Variant = typename P::Variant;
  const P& p;
  const Piece& piece;
  QueryRow at;
  float lse;
  float factor;  // scale of V and share of the keys beside the sink
  bool sees_keys;

  ATTNHUB_DEVICE RowEnd(const P& params, const Piece& its_piece, const QueryRow& row, i32 kv_head,
                        float natural_lse)
      : p(params),
        piece(its_piece),
        at(row),
        lse(kTellsEmptyRows<Variant> && natural_lse == kOnlyMinusInf ? kMinusInf : natural_lse),
        factor(params.scale_v * params.scales_v.of(kv_head)),
        sees_keys(natural_lse != kMinusInf) {
    if constexpr (Variant::kHasSinks) {
      if (sees_keys) add_sink(p.variant.sink(at.head));
    }
    if constexpr (!Variant::kSoftmax) lse = kMinusInf;
  }

  ATTNHUB_DEVICE float element(float value, int channel) const {
    float scaled = value * factor;
    if constexpr (Variant::kTransformsOutput) {
      const QueryElement where = {piece.request_idx,    at.qo_idx,              at.head,
                                  piece.request.qo_len, piece.request.kv_len, channel};
      if (sees_keys) scaled = p.variant.output(where, scaled);
    }
    return scaled;
  }

 private:
  ATTNHUB_DEVICE void add_sink(float sink) {
    const float highest = fmaxf(lse, sink);
    if (highest == kMinusInf) return;
    const float of_keys = ptx::ex2((lse - highest) * kLog2E);
    const float sum = of_keys + ptx::ex2((sink - highest) * kLog2E);
    factor *= of_keys * ptx::rcp(sum);
    lse = highest + ptx::lg2(sum) * kLn2;
  }
};

}  // namespace attnhub::fa2
