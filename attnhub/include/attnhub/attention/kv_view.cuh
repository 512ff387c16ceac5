// Where the K and V rows of a request lie, whatever the cache's layout: a table names a page and a
// slot in it, and strides turn these into an address.
#pragma once

#include "attnhub/attention/request.cuh"
#include "attnhub/common/fastdiv.cuh"
#include "attnhub/common/types.cuh"
#include "attnhub/ptx/memory.cuh"

namespace attnhub {

struct KvSlot {
  i32 page, slot;
};

// Which rows are a request's keys, in order.
struct KvTable {
  const i32* indices;  // [pages of all requests], in CSR form; null: keys lie end to end, and every
                       // row is a page of one slot
  FastDiv page_size;

  // NOTE: only for keys that the request has. What follows its last page in the table is garbage.
  ATTNHUB_DEVICE KvSlot find(const Request& request, i32 key) const {
    if (indices == nullptr) return {request.kv_begin + key, 0};
    const u32 page = page_size.divide(u32(key));
    return {ptx::ld_global(indices + request.kv_begin + page),
            key - i32(page * page_size.divisor)};
  }
};

// One of the tensors K and V, in elements. NHD and HND differ in the strides only; of ragged rows,
// stride_page is the stride of a token.
template <class T>
struct KvTensor {
  const T* base;
  i64 stride_page, stride_slot, stride_head;

  ATTNHUB_DEVICE const T* row(KvSlot at, i32 head) const {
    return base + at.page * stride_page + at.slot * stride_slot + head * stride_head;
  }
};

}  // namespace attnhub
