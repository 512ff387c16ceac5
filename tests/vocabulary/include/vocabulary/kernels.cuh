// One small kernel for each function of ptx/fp8, common/fastdiv, attention/rope and
// attention/mask_bits. A grid of any size does all of it.
#pragma once

#include "attnhub/attention/mask_bits.cuh"
#include "attnhub/attention/rope.cuh"
#include "attnhub/common/fastdiv.cuh"
#include "attnhub/common/fragments.cuh"
#include "attnhub/ptx/barrier.cuh"
#include "attnhub/ptx/fp8.cuh"
#include "attnhub/ptx/ldmatrix.cuh"
#include "attnhub/ptx/memory.cuh"
#include "attnhub/ptx/mma_sm80.cuh"
#include "attnhub/ptx/thread.cuh"

namespace vocabulary {

using namespace attnhub;

using Chunk = Vec<u32, 4>;

ATTNHUB_DEVICE int first() { return int(blockIdx.x * blockDim.x + threadIdx.x); }
ATTNHUB_DEVICE int stride() { return int(gridDim.x * blockDim.x); }

struct WidenParams {
  const u8* codes;  // [n], a multiple of 4
  u32* neighbours;  // [n / 2] pairs
  u32* alternate;   // [n / 2]
  float* wide;      // [n]
  int n;
};

template <class T, class F>
ATTNHUB_DEVICE void widen_fp8(const WidenParams& p) {
  for (int i = first(); i < p.n / 4; i += stride()) {
    const u32 four = ptx::ld_global(reinterpret_cast<const u32*>(p.codes) + i);
    u32 pairs[2];
    ptx::dequantize<T, F, ptx::Fp8Pairs::kNeighbours>(four, pairs);
    for (int k = 0; k < 2; ++k) ptx::st_global(p.neighbours + 2 * i + k, pairs[k]);
    ptx::dequantize<T, F, ptx::Fp8Pairs::kAlternate>(four, pairs);
    for (int k = 0; k < 2; ++k) ptx::st_global(p.alternate + 2 * i + k, pairs[k]);
  }
  for (int i = first(); i < p.n; i += stride()) {
    ptx::st_global(p.wide + i, ptx::to_float(F{ptx::ld_global(p.codes + i)}));
  }
}

struct NarrowParams {
  const float* x;  // [n], an even number
  u16* codes;      // [n / 2] pairs
  int n;
};

template <class F>
ATTNHUB_DEVICE void narrow_to_fp8(const NarrowParams& p) {
  for (int i = first(); i < p.n / 2; i += stride()) {
    const float low = ptx::ld_global(p.x + 2 * i), high = ptx::ld_global(p.x + 2 * i + 1);
    ptx::st_global(p.codes + i, ptx::pack_fp8<F>(low, high));
  }
}

struct ScoresParams {
  const u32* q;  // [16, 32] of T
  const u8* k;   // [16, 32] of F
  float* d;      // [16, 16]
};

// Q K^T by one warp, K in FP8 with the reduced dimension contiguous.
template <class T, class F>
ATTNHUB_DEVICE void fp8_scores(const ScoresParams& p) {
  if (blockIdx.x != 0 || threadIdx.x >= 32) return;
  const int lane = ptx::lane_idx(), g = lane / 4, c = lane % 4 * 2;
  const u32 smem = ptx::dynamic_smem();
  ptx::st_shared(smem + lane * 16, ptx::ld_global(reinterpret_cast<const Chunk*>(p.k) + lane));
  ptx::sync_warp();
  using Address = LdmatrixAddress<Ldmatrix::kChunksFirst>;
  u32 k[4];  // (k16 steps, n8 tiles), steps first
  ptx::ldmatrix(k, smem + Address::row(lane) * 32 + Address::chunk(lane) * 16);
  for (int tile = 0; tile < 2; ++tile) {
    float d[4] = {};
    for (int step = 0; step < 2; ++step) {
      u32 a[4], b[2];
      for (int i = 0; i < 4; ++i) {  // columns 2 c, 2 c + 1 and 2 c + 2, 2 c + 3
        const int row = g + i % 2 * 8, column = step * 16 + 2 * c + i / 2 * 2;
        a[i] = ptx::ld_global(p.q + row * 16 + column / 2);
      }
      ptx::dequantize<T, F, ptx::Fp8Pairs::kNeighbours>(k[tile * 2 + step], b);
      ptx::mma_m16n8k16<T>(d, a, b[0], b[1]);
    }
    for (int i = 0; i < 4; ++i) {
      const int column = tile * 8 + Accumulator::column(lane, i);
      ptx::st_global(p.d + Accumulator::row(lane, i) * 16 + column, d[i]);
    }
  }
}

struct OutputParams {
  const u32* weights;  // [16, 16] of T
  const u8* v;         // [16, 32] of F
  float* d;            // [16, 32]
};

// P V by one warp, V in FP8 with the reduced dimension from row to row.
template <class T, class F>
ATTNHUB_DEVICE void fp8_output(const OutputParams& p) {
  if (blockIdx.x != 0 || threadIdx.x >= 32) return;
  const int lane = ptx::lane_idx(), g = lane / 4, c = lane % 4 * 2;
  const u32 smem = ptx::dynamic_smem();
  ptx::st_shared(smem + lane * 16, ptx::ld_global(reinterpret_cast<const Chunk*>(p.v) + lane));
  ptx::sync_warp();
  using Address = LdmatrixAddress<Ldmatrix::kRowsFirst>;
  u32 v[4], a[4];  // v: (halves of k16, chunks of 16 columns), halves first
  ptx::ldmatrix<4, true>(v, smem + Address::row(lane) * 32 + Address::chunk(lane) * 16);
  for (int i = 0; i < 4; ++i) {
    a[i] = ptx::ld_global(p.weights + (g + i % 2 * 8) * 8 + (c + i / 2 * 8) / 2);
  }
  for (int chunk = 0; chunk < 2; ++chunk) {
    u32 upper[2], lower[2];
    ptx::dequantize<T, F, ptx::Fp8Pairs::kAlternate>(v[chunk * 2], upper);
    ptx::dequantize<T, F, ptx::Fp8Pairs::kAlternate>(v[chunk * 2 + 1], lower);
    float even[4] = {}, odd[4] = {};
    ptx::mma_m16n8k16<T>(even, a, upper[0], lower[0]);
    ptx::mma_m16n8k16<T>(odd, a, upper[1], lower[1]);
    for (int row = 0; row < 2; ++row) {
      const Vec<float, 4> four{even[row * 2], odd[row * 2], even[row * 2 + 1], odd[row * 2 + 1]};
      const int first = (g + row * 8) * 32 + chunk * 16 + 2 * c;
      ptx::st_global(reinterpret_cast<Vec<float, 4>*>(p.d + first), four);
    }
  }
}

struct RopeParams {
  const float* frequencies;  // [kRotaryDim / 2]
  const i32* positions;      // [tokens]
  float* x;                  // [tokens, dim], turned in place
  float factor;
  int tokens, dim;
};

template <int kRotaryDim, bool kInterleaved>
ATTNHUB_DEVICE void rope(const RopeParams& p) {
  using Pairs = RopePairs<kRotaryDim, kInterleaved>;
  for (int i = first(); i < p.tokens * Pairs::kCount; i += stride()) {
    const int token = i / Pairs::kCount, pair = i % Pairs::kCount;
    float* row = p.x + i64(token) * p.dim;
    float a = ptx::ld_global(row + Pairs::first(pair));
    float b = ptx::ld_global(row + Pairs::second(pair));
    turn_at(ptx::ld_global(p.positions + token), ptx::ld_global(p.frequencies + pair), p.factor)
        .apply(a, b);
    ptx::st_global(row + Pairs::first(pair), a);
    ptx::st_global(row + Pairs::second(pair), b);
  }
}

struct MaskParams {
  const u8* mask;
  u32* words;  // [rows, columns]: the 32 keys from each column on
  i64 begin;   // of the request's part of the mask
  int qo_len, kv_len, rows, columns;
};

template <bool kPacked>
ATTNHUB_DEVICE void read_mask(const MaskParams& p) {
  const CustomMask<kPacked> mask{p.mask + p.begin, p.qo_len, p.kv_len};
  for (int i = first(); i < p.rows * p.columns; i += stride()) {
    ptx::st_global(p.words + i, mask.keys(i / p.columns, i % p.columns));
  }
}

// words[0]: the last 32 keys of the last query.
ATTNHUB_DEVICE void read_last_keys(const MaskParams& p) {
  const CustomMask<true> mask{p.mask + p.begin, p.qo_len, p.kv_len};
  if (threadIdx.x == 0) ptx::st_global(p.words, mask.keys(p.qo_len - 1, p.kv_len - 32));
}

struct DivideParams {
  const i32* numbers;  // [n]
  i32* quotients;      // [n]
  int n;
  FastDiv divisor;
};

ATTNHUB_DEVICE void divide(const DivideParams& p) {
  for (int i = first(); i < p.n; i += stride()) {
    ptx::st_global(p.quotients + i, i32(p.divisor.divide(u32(ptx::ld_global(p.numbers + i)))));
  }
}

}  // namespace vocabulary
