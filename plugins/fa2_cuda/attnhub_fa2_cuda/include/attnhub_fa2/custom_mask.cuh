// A mask that the caller gives, on top of what lengths and windows say.
#pragma once

#include "attnhub/attention/mask_bits.cuh"
#include "attnhub/attention/request.cuh"
#include "attnhub/common/types.cuh"
#include "attnhub/ptx/memory.cuh"

namespace attnhub::fa2 {

struct NoMask {
  static constexpr bool kExists = false;
  ATTNHUB_DEVICE bool is_given() const { return false; }
};

template <bool kPacked>
struct BatchMask {
  static constexpr bool kExists = true;
  const u8* data;      // of all requests, end to end; null: a batch without one
  const i64* offsets;  // [batch]: the byte where a request's part begins

  ATTNHUB_DEVICE bool is_given() const { return data != nullptr; }
  ATTNHUB_DEVICE CustomMask<kPacked> of(i32 request_idx, const Request& request) const {
    return {data + ptx::ld_global(offsets + request_idx), request.qo_len, request.kv_len};
  }
};

}  // namespace attnhub::fa2
