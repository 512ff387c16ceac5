// Kernels that merge attention states in global memory: two of every row, or any number of them.
// Grids may have any size, as CTAs step through the rows.
#pragma once

#include "attnhub/attention/rows.cuh"
#include "attnhub/attention/state.cuh"
#include "attnhub/ptx/barrier.cuh"

namespace attnhub::merge {

// The last dimension of each is contiguous; strides are in elements.
template <class Data, class Lse>
struct RowsOf {
  Data* o;   // [tokens, heads, dim]
  Lse* lse;  // [tokens, heads]
  i64 stride_token, stride_head, stride_lse_token;

  template <class T>
  ATTNHUB_DEVICE auto row(const RowWalk& at) const {
    return static_cast<T*>(o) + at.token * stride_token + at.head * stride_head;
  }
  ATTNHUB_DEVICE Lse* lse_of(const RowWalk& at) const {
    return lse + at.token * stride_lse_token + at.head;
  }
};
using States = RowsOf<const void, const float>;
using Merged = RowsOf<void, float>;

struct TwoParams {
  States a, b;
  Merged out;       // may be a or b
  const u8* mask;   // [tokens], or null: tokens with 0 are left alone
  i64 num_tokens;
  FastDiv heads;
  bool is_aligned;  // every row of o begins at a multiple of 16 bytes
};

struct ManyParams {
  States states;                       // [tokens, states, heads, dim]
  i64 stride_state, stride_lse_state;  // of the dimension that States does not have
  Merged out;                          // none of the states
  i64 num_tokens;
  FastDiv heads;
  i32 num_states;
  i32 part_bits;  // 2^part_bits warps of a CTA share the states of a row
  bool is_aligned;
};

template <class Shape, int kThreads, bool kIsAligned>
ATTNHUB_DEVICE void two_rows(const TwoParams& p) {
  using T = typename Shape::Element;
  constexpr u32 kRowsOfCta = kThreads / Shape::kLanes;
  const int lane = ptx::lane_idx() % Shape::kLanes;
  const i64 num_rows = p.num_tokens * p.heads.divisor, step = i64(gridDim.x) * kRowsOfCta;
  RowWalk at(blockIdx.x * kRowsOfCta + threadIdx.x / Shape::kLanes, u32(step), p.heads);

  // By the first row of the CTA, so that all of its threads stay together.
  for (i64 first = i64(blockIdx.x) * kRowsOfCta; first < num_rows; first += step, at.advance()) {
    float lse = kMinusInf;
    bool is_taken = at.token < p.num_tokens;
    if (is_taken && p.mask != nullptr) is_taken = ptx::ld_global(p.mask + at.token) != 0;
    if (is_taken) {
      const float lse_a = ptx::ld_global(p.a.lse_of(at)), lse_b = ptx::ld_global(p.b.lse_of(at));
      const T *row_a = p.a.row<const T>(at), *row_b = p.b.row<const T>(at);
      for (int s = 0; s < Shape::kSteps; ++s) {
        RowPiece<Shape, kIsAligned> a, b;
        a.load(row_a, s, lane);
        b.load(row_b, s, lane);
        MergedState<Shape::kSize> merged;
        float values[Shape::kSize];
        merged.raise(fmaxf(lse_a, lse_b));
        a.widen(values);
        merged.take(values, lse_a);
        b.widen(values);
        merged.take(values, lse_b);
        merged.normalise();
        a.narrow(merged.o);
        a.store(p.out.row<T>(at), s, lane);
        lse = merged.lse;
      }
    }
    // NOTE: out may be an input, whose LSE all lanes of the row must have read by now.
    ptx::sync_warp();
    if (is_taken && lane == 0) ptx::st_global(p.out.lse_of(at), lse);
  }
}

// out = a merged with b.
template <class Shape, int kThreads>
ATTNHUB_DEVICE void two_states(const TwoParams& p) {
  if (p.is_aligned) {
    two_rows<Shape, kThreads, true>(p);
  } else {
    two_rows<Shape, kThreads, false>(p);
  }
}

// The states part, part + num_parts, ... of a row.
template <class Shape, bool kIsAligned>
ATTNHUB_DEVICE MergedState<Shape::kSize> merge_part(const ManyParams& p, const RowWalk& at, int part,
                                                    int step, int lane) {
  using T = typename Shape::Element;
  constexpr int kInFlight = 4;  // states
  const i32 num_parts = 1 << p.part_bits;
  const T* row = p.states.row<const T>(at);
  const float* lse_of_row = p.states.lse_of(at);
  MergedState<Shape::kSize> merged;
  for (i32 first = part; first < p.num_states; first += kInFlight * num_parts) {
    RowPiece<Shape, kIsAligned> pieces[kInFlight];
    float lse[kInFlight], largest = kMinusInf;
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      const i64 state = first + i64(i) * num_parts;
      lse[i] = kMinusInf;
      if (state >= p.num_states) continue;
      lse[i] = ptx::ld_global(lse_of_row + state * p.stride_lse_state);
      pieces[i].load(row + state * p.stride_state, step, lane);
    }
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) largest = fmaxf(largest, lse[i]);
    merged.raise(largest);
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      float values[Shape::kSize];
      pieces[i].widen(values);
      merged.take(values, lse[i]);
    }
  }
  return merged;
}

// Shared memory by which the parts of a row meet: a column of floats for each thread.
template <class Shape, int kThreads>
struct Exchange {
  static constexpr int kFloats = Shape::kSize + 2;  // o, LSE, weight

  static ATTNHUB_DEVICE u32 at(int i, int thread) {
    return ptx::dynamic_smem() + u32(i * kThreads + thread) * u32(sizeof(float));
  }
  static ATTNHUB_DEVICE void give(const MergedState<Shape::kSize>& state) {
    const int thread = int(threadIdx.x);
#pragma unroll
    for (int i = 0; i < Shape::kSize; ++i) ptx::st_shared(at(i, thread), state.o[i]);
    ptx::st_shared(at(Shape::kSize, thread), state.lse);
    ptx::st_shared(at(Shape::kSize + 1, thread), state.weight);
  }
  static ATTNHUB_DEVICE void take(MergedState<Shape::kSize>& state, int thread) {
    float o[Shape::kSize];
#pragma unroll
    for (int i = 0; i < Shape::kSize; ++i) o[i] = ptx::ld_shared<float>(at(i, thread));
    const float lse = ptx::ld_shared<float>(at(Shape::kSize, thread));
    state.add(o, lse, ptx::ld_shared<float>(at(Shape::kSize + 1, thread)));
  }
};

template <class Shape, int kThreads, bool kIsAligned>
ATTNHUB_DEVICE void many_rows(const ManyParams& p) {
  using T = typename Shape::Element;
  const int num_parts = 1 << p.part_bits;
  const int warp = ptx::uniform_warp_idx(), part = warp & (num_parts - 1);
  const u32 rows_of_cta = (kThreads / ptx::kWarpSize * Shape::kRowsOfWarp) >> p.part_bits;
  const u32 row_of_cta =
      (warp >> p.part_bits) * Shape::kRowsOfWarp + ptx::lane_idx() / Shape::kLanes;
  const int lane = ptx::lane_idx() % Shape::kLanes;
  const i64 num_rows = p.num_tokens * p.heads.divisor, step = i64(gridDim.x) * rows_of_cta;
  RowWalk at(blockIdx.x * rows_of_cta + row_of_cta, u32(step), p.heads);

  for (i64 first = i64(blockIdx.x) * rows_of_cta; first < num_rows; first += step, at.advance()) {
    const bool is_taken = at.token < p.num_tokens;
    for (int s = 0; s < Shape::kSteps; ++s) {
      MergedState<Shape::kSize> merged;
      if (is_taken) merged = merge_part<Shape, kIsAligned>(p, at, part, s, lane);
      if (num_parts > 1) {
        using Parts = Exchange<Shape, kThreads>;
        ptx::sync_threads();  // what the step before left has been read
        if (part > 0) Parts::give(merged);
        ptx::sync_threads();
        if (part > 0) continue;
        for (int i = 1; i < num_parts; ++i) {
          Parts::take(merged, int(threadIdx.x) + i * ptx::kWarpSize);
        }
      }
      if (!is_taken) continue;
      merged.normalise();
      RowPiece<Shape, kIsAligned> out;
      out.narrow(merged.o);
      out.store(p.out.row<T>(at), s, lane);
      if (s == 0 && lane == 0) ptx::st_global(p.out.lse_of(at), merged.lse);
    }
  }
}

// out = all states merged; 0 and -inf where there are none.
template <class Shape, int kThreads>
ATTNHUB_DEVICE void many_states(const ManyParams& p) {
  if (p.is_aligned) {
    many_rows<Shape, kThreads, true>(p);
  } else {
    many_rows<Shape, kThreads, false>(p);
  }
}

}  // namespace attnhub::merge
