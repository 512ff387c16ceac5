// Custom masks: which keys each query of a request sees, as bits or as bools.
#pragma once

#include "attnhub/common/types.cuh"
#include "attnhub/ptx/memory.cuh"

namespace attnhub {

// The mask [qo_len, kv_len] of one request, row-major. kPacked: eight elements a byte, the first in
// bit 0, and every request begins at a byte, as attnhub.quantization.segment_packbits leaves them.
// Else a byte each, 0 or 1. Nothing outside of the request's part is read.
template <bool kPacked>
struct CustomMask {
  const u8* data;  // [num_bytes(qo_len, kv_len)], aligned to nothing
  i32 qo_len, kv_len;

  // How much of the batch's mask a request takes: a request's part begins where these sum up to.
  static ATTNHUB_HOST_DEVICE constexpr i64 num_bytes(i32 qo_len, i32 kv_len) {
    const i64 size = i64(qo_len) * kv_len;
    return kPacked ? (size + 7) / 8 : size;
  }

  // Bit j: whether query `row` sees key `first + j`; 0 past the last row or key.
  ATTNHUB_DEVICE u32 keys(i32 row, i32 first) const {
    if (row >= qo_len || first >= kv_len) return 0;
    const i64 element = i64(row) * kv_len + first;
    const u32 bits = kPacked ? packed(element) : bools(element);
    return kv_len - first < 32 ? bits & ((1u << (kv_len - first)) - 1) : bits;
  }

 private:
  ATTNHUB_DEVICE u64 end() const { return u64(data) + u64(num_bytes(qo_len, kv_len)); }

  // The word at an address that is a multiple of 4; bytes outside of the request's part are 0.
  ATTNHUB_DEVICE u32 word(u64 address) const {
    if (address >= u64(data) && address + 4 <= end()) {
      return ptx::ld_global(reinterpret_cast<const u32*>(address));
    }
    u32 found = 0;
    for (u32 i = 0; i < 4; ++i) {
      const u64 byte = address + i;
      if (byte >= u64(data) && byte < end()) {
        found |= u32(ptx::ld_global(reinterpret_cast<const u8*>(byte))) << 8 * i;
      }
    }
    return found;
  }

  // 32 bits that begin in the middle of a word and end in the next.
  ATTNHUB_DEVICE u32 packed(i64 bit) const {
    const u64 byte = u64(data) + u64(bit >> 3), address = byte & ~u64(3);
    const u32 shift = u32(byte & 3) * 8 + u32(bit & 7);
    const u64 high = shift == 0 ? 0 : word(address + 4);
    return u32((high << 32 | word(address)) >> shift);
  }

  ATTNHUB_DEVICE u32 bools(i64 element) const {
    const u64 byte = u64(data) + u64(element), address = byte & ~u64(3);
    const u32 skipped = u32(byte & 3);
    u64 bits = 0;  // of nine words, from the one where the first bool lies
    for (int i = 0; i < 9; ++i) {
      // The product brings bit 0 of each byte to bits 24 .. 27; no two terms share a bit.
      bits |= u64(word(address + 4 * i) * 0x01020408u >> 24 & 15) << 4 * i;
    }
    return u32(bits >> skipped);
  }
};

}  // namespace attnhub
