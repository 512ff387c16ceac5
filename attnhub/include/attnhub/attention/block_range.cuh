// Which keys queries see, by lengths and window alone. Causal is a window without a right side.
#pragma once

#include "attnhub/attention/mask.cuh"
#include "attnhub/attention/request.cuh"
#include "attnhub/common/types.cuh"

namespace attnhub {

// How many keys before and after the one at its own position a query sees; -1: all.
struct Window {
  i32 left, right;
};

// The keys that any of the queries first..last sees; `last` may lie past the last query. Query i
// stands at key kv_len - qo_len + i. With more queries than keys the first ones stand before all
// keys, and see none if the window ends on the right.
ATTNHUB_HOST_DEVICE KeyRange visible_keys(const Request& request, Window window, i64 first,
                                          i64 last) {
  const i64 diagonal = i64(request.kv_len) - request.qo_len;
  const auto clamp = [&](i64 key) { return i32(max(min(key, i64(request.kv_len)), i64(0))); };
  return {window.left < 0 ? 0 : clamp(diagonal + first - window.left),
          window.right < 0 ? request.kv_len : clamp(diagonal + last + window.right + 1)};
}

}  // namespace attnhub
