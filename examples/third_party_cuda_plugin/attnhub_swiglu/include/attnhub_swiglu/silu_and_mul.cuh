// out = silu(gate) * up for rows of 16-bit elements, with silu(z) = z / (1 + exp(-z)).
//
// Source: Shazeer, "GLU Variants Improve Transformer" (2020).
#pragma once

#include "attnhub/common/constants.cuh"
#include "attnhub/common/types.cuh"
#include "attnhub/ptx/convert.cuh"
#include "attnhub/ptx/math.cuh"
#include "attnhub/ptx/memory.cuh"

namespace attnhub_swiglu {

namespace ptx = attnhub::ptx;
using attnhub::bit_cast, attnhub::i32, attnhub::i64, attnhub::u32, attnhub::Vec;

constexpr int kChunk = 8;  // elements that one instruction moves, 16 bytes

template <class T>
struct Params {
  const T* x;                // [num_rows, 2, hidden]: the gate, then up
  T* out;                    // [num_rows, hidden]
  i64 stride_x, stride_out;  // elements from one row to the next
  i64 num_rows;
  i32 num_chunks;            // hidden / kChunk
  bool is_aligned;           // every row begins at a multiple of 16 bytes
};

ATTNHUB_DEVICE float silu(float z) {
  return z * ptx::rcp(1.0f + ptx::ex2(-attnhub::kLog2E * z));
}

template <class T>
ATTNHUB_DEVICE Vec<T, kChunk> silu_and_mul(const Vec<T, kChunk>& gate, const Vec<T, kChunk>& up) {
  const auto gates = bit_cast<Vec<u32, 4>>(gate), ups = bit_cast<Vec<u32, 4>>(up);
  Vec<u32, 4> products;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const auto z = ptx::unpack<T>(gates[i]), factor = ptx::unpack<T>(ups[i]);
    products[i] = ptx::pack<T>(silu(z[0]) * factor[0], silu(z[1]) * factor[1]);
  }
  return bit_cast<Vec<T, kChunk>>(products);
}

template <bool kIsAligned, class T>
ATTNHUB_DEVICE Vec<T, kChunk> load(const T* from) {
  if constexpr (kIsAligned) {
    return ptx::ld_global_once(reinterpret_cast<const Vec<T, kChunk>*>(from));
  } else {
    Vec<T, kChunk> chunk;
#pragma unroll
    for (int i = 0; i < kChunk; ++i) chunk[i] = ptx::ld_global(from + i);
    return chunk;
  }
}

template <bool kIsAligned, class T>
ATTNHUB_DEVICE void store(T* to, const Vec<T, kChunk>& chunk) {
  if constexpr (kIsAligned) {
    ptx::st_global(reinterpret_cast<Vec<T, kChunk>*>(to), chunk);
  } else {
#pragma unroll
    for (int i = 0; i < kChunk; ++i) ptx::st_global(to + i, chunk[i]);
  }
}

// A thread has one chunk of every gridDim.y-th row.
template <bool kIsAligned, class T>
ATTNHUB_DEVICE void rows(const Params<T>& p) {
  const i32 chunk = blockIdx.x * blockDim.x + threadIdx.x;
  if (chunk >= p.num_chunks) return;
  const i64 column = i64(chunk) * kChunk, hidden = i64(p.num_chunks) * kChunk;
  for (i64 row = blockIdx.y; row < p.num_rows; row += gridDim.y) {
    const T* x = p.x + row * p.stride_x + column;
    const auto gate = load<kIsAligned>(x), up = load<kIsAligned>(x + hidden);
    store<kIsAligned>(p.out + row * p.stride_out + column, silu_and_mul<T>(gate, up));
  }
}

// Grid: (num_chunks / blockDim.x, rounded up; any number).
template <class T>
ATTNHUB_DEVICE void kernel(const Params<T>& p) {
  if (p.is_aligned) {
    rows<true>(p);
  } else {
    rows<false>(p);
  }
}

}  // namespace attnhub_swiglu
