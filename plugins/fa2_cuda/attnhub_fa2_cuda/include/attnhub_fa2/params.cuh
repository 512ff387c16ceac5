// What the kernel is given.
#pragma once

#include "attnhub/attention/kv_view.cuh"
#include "attnhub/attention/schedule.cuh"
#include "attnhub/common/types.cuh"
#include "attnhub_fa2/format.cuh"

namespace attnhub::fa2 {

// A number, or one for each head: that of head h is values[h * stride]. Null stands for 1.
struct HeadScale {
  const float* values;
  i32 stride;

  ATTNHUB_DEVICE float of(i32 head) const {
    return values == nullptr ? 1.0f : ptx::ld_global(values + head * stride);
  }
};

// The requests that one tile shape takes, and how their heads are packed into its rows.
struct Share {
  Schedule schedule;
  Section section;
  float* partial_out;  // [slots, lanes, kBlockM x kDimVo]: each piece normalised by itself
  float* partial_lse;  // [slots, lanes, kBlockM]
  FastDiv group;       // query heads whose rows are packed into a tile
  i32 groups_per_kv;   // such groups that share a KV head: 1, unless it has more than fit a tile
  i32 num_lanes;       // groups that are a dimension of the grid, the lanes of a worker
};

template <class Format_, class Variant_, class Mask_, class Rotation_, int kShares>
struct Params {
  using Format = Format_;
  using Variant = Variant_;
  using Mask = Mask_;
  using Rotation = Rotation_;

  const typename Format::Element* q;  // [tokens, qo_heads, kDimQk]
  i64 stride_q_token, stride_q_head;
  KvTensor<typename Format::Kv> k, v;
  typename Format::Output* out;  // [tokens, qo_heads, kDimVo]
  float* lse;                    // [tokens, qo_heads], or null
  i64 stride_out_token, stride_out_head, stride_lse_token;
  i32 num_tokens;  // rows of q and out: those of the batch, and what a CUDA graph pads them with
  float scale;     // of the softmax
  float scale_q;   // of elements of q, where a hook sees these; else it is in the first
  float scale_k;   // likewise
  float scale_v;   // of the output
  HeadScale scales_q, scales_k, scales_v;  // further factors of q, k and v
  Variant variant;

  const i32* qo_end;  // one word: the number of rows that belong to a request
  Mask mask;
  Rotation rotation;
  KvTable table;

  // NOTE: from table.page_size on nothing changes from one batch to the next.
  i32 num_qo_heads;
  Share shares[kShares];
};

}  // namespace attnhub::fa2
