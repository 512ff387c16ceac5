// Merging attention over disjoint sets of keys (Milakov and Gimelshein 2018). A state is attention
// over one set: an output row and its LSE, the logarithm of the sum of exp(score) over the keys.
//
// LSEs are natural logarithms wherever they are stored, in the partial rows of a split as well as in
// what callers see, so that one merge serves all. An LSE of -inf says that the set has no key: such
// a state counts for nothing, and its output may hold anything, NaN included.
#pragma once

#include "attnhub/common/constants.cuh"
#include "attnhub/common/types.cuh"
#include "attnhub/ptx/math.cuh"

namespace attnhub {

// The merge of any number of states, as a thread keeps it for its kSize elements of a row: sums with
// weights relative to the largest LSE, which are exact at any magnitude and at most 1.
template <int kSize>
struct MergedState {
  float o[kSize] = {};    // sum of weight x output
  float lse = kMinusInf;  // the largest: weights are exp(lse of a state - this)
  float weight = 0.0f;    // sum of the weights

  // Makes weights relative to `largest`, if it is larger than what they are relative to now.
  ATTNHUB_DEVICE void raise(float largest) {
    const float highest = fmaxf(lse, largest);
    // NOTE: while no state has a key, 0 stands for the largest: -inf - -inf would be NaN.
    const float shrink = relative(lse, highest == kMinusInf ? 0.0f : highest);
#pragma unroll
    for (int i = 0; i < kSize; ++i) o[i] *= shrink;
    weight *= shrink;
    lse = highest;
  }

  // Adds a state whose LSE raise() has seen. One that is itself a sum, not yet divided by its
  // weight, comes with that weight.
  template <class Values>
  ATTNHUB_DEVICE void take(const Values& values, float its_lse, float its_weight = 1.0f) {
    // NOTE: a product with 0 would not do, as 0 x NaN is NaN. Nor would a branch: compilers then move
    // the loads of the values into it, behind the wait for the LSE.
    const bool has_keys = its_lse != kMinusInf;
    const float factor = has_keys ? relative(its_lse, lse) : 0.0f;
#pragma unroll
    for (int i = 0; i < kSize; ++i) {
      const float sum = o[i] + factor * values[i];
      o[i] = has_keys ? sum : o[i];
    }
    weight += factor * its_weight;
  }

  template <class Values>
  ATTNHUB_DEVICE void add(const Values& values, float its_lse, float its_weight = 1.0f) {
    raise(its_lse);
    take(values, its_lse, its_weight);
  }

  // Makes this a state like those that it merged: `o` its output and `lse` its LSE; 0 and -inf if
  // none of them has a key.
  ATTNHUB_DEVICE void normalise() {
    const bool has_keys = weight != 0.0f;  // NaN stays NaN
    const float inverse = has_keys ? ptx::rcp(weight) : 0.0f;
#pragma unroll
    for (int i = 0; i < kSize; ++i) o[i] *= inverse;
    lse += ptx::lg2(weight) * kLn2;
    weight = has_keys ? 1.0f : 0.0f;
  }

 private:
  static ATTNHUB_DEVICE float relative(float of, float to) { return ptx::ex2((of - to) * kLog2E); }
};

}  // namespace attnhub
