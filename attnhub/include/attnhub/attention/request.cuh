// One request of a batch: where its queries and keys lie, and how many of each it has.
#pragma once

#include "attnhub/common/types.cuh"

namespace attnhub {

struct alignas(16) Request {
  i32 qo_begin;  // row of its first query
  i32 qo_len;
  i32 kv_begin;  // its first entry in the page table, or its first row of ragged keys
  i32 kv_len;
};

}  // namespace attnhub
