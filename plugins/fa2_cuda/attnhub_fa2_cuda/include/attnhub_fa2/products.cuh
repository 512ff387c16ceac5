// The two products of a block, Q K^T and P V, of one warp's rows and keys: from shared memory by
// ldmatrix, the operands that are FP8 widened on the way.
#pragma once

#include "attnhub/common/fragments.cuh"
#include "attnhub/ptx/convert.cuh"
#include "attnhub/ptx/ldmatrix.cuh"
#include "attnhub/ptx/mma_sm80.cuh"
#include "attnhub_fa2/tile_shape.cuh"

namespace attnhub::fa2 {

template <class Shape>
struct Products {
  using T = typename Shape::Element;
  using Kv = typename Shape::Kv;
  using TileQ = typename Shape::TileQ;
  using TileK = typename Shape::TileK;
  using TileV = typename Shape::TileV;
  using RowsFirst = LdmatrixAddress<Ldmatrix::kRowsFirst>;
  using ChunksFirst = LdmatrixAddress<Ldmatrix::kChunksFirst>;
  static constexpr int kTilesM = Shape::kTilesM;
  static constexpr int kTilesN = Shape::kWarpKeys / 8;  // of a warp's scores
  static constexpr int kTilesD = Shape::kDimVo / 8;     // of its output
  // A chunk of 16 bytes is half of a product's depth or, of FP8, all of it.
  static constexpr int kStepsPerLoad = Shape::Format::kIsFp8 ? 2 : 1;

  // m16 tiles, n8 tiles, fragments of D.
  using Scores = float[kTilesM][kTilesN][4];
  using Output = float[kTilesM][kTilesD][4];

  // scores += Q K^T, of the rows of Q and the keys of K that begin at these.
  static ATTNHUB_DEVICE void add_scores(Scores& scores, u32 tile_q, int first_query, u32 tile_k,
                                        int first_key) {
    constexpr int kSteps = Shape::kDimQk / 16;
    const int lane = ptx::lane_idx();
    const u32 first_q =
        tile_q + TileQ::offset(first_query + RowsFirst::row(lane), RowsFirst::chunk(lane));
    const u32 first_k =
        tile_k + TileK::offset(first_key + ChunksFirst::row(lane), ChunksFirst::chunk(lane));
#pragma unroll
    for (int k = 0; k < kSteps; k += kStepsPerLoad) {
      u32 q[kStepsPerLoad][kTilesM][4];
#pragma unroll
      for (int s = 0; s < kStepsPerLoad && k + s < kSteps; ++s) {
#pragma unroll
        for (int m = 0; m < kTilesM; ++m) {
          ptx::ldmatrix(q[s][m], TileQ::step(first_q, m * 16, (k + s) * 2));
        }
      }
#pragma unroll
      for (int n = 0; n < kTilesN; n += 2) {
        u32 loaded[4];
        ptx::ldmatrix(loaded, TileK::step(first_k, n * 8, k / kStepsPerLoad * 2));
#pragma unroll
        for (int s = 0; s < kStepsPerLoad && k + s < kSteps; ++s) {
          u32 b[2][2];
          key_operands(loaded, s, b);
#pragma unroll
          for (int m = 0; m < kTilesM; ++m) {
            ptx::mma_m16n8k16<T>(scores[m][n], q[s][m], b[0][0], b[0][1]);
            ptx::mma_m16n8k16<T>(scores[m][n + 1], q[s][m], b[1][0], b[1][1]);
          }
        }
      }
    }
  }

  // out += P V, of the keys of V that begin at this one. The fragment of D that holds two n8 tiles of
  // weights is one of A of this product.
  static ATTNHUB_DEVICE void add_values(Output& out, const Scores& weights, u32 tile_v,
                                        int first_key) {
    constexpr int kTilesPerLoad = 2 * kStepsPerLoad;
    const int lane = ptx::lane_idx();
    const u32 first_v =
        tile_v + TileV::offset(first_key + RowsFirst::row(lane), RowsFirst::chunk(lane));
#pragma unroll
    for (int k = 0; k < kTilesN / 2; ++k) {
      u32 a[kTilesM][4];
#pragma unroll
      for (int m = 0; m < kTilesM; ++m) {
        const float(&low)[4] = weights[m][k * 2];
        const float(&high)[4] = weights[m][k * 2 + 1];
        a[m][0] = ptx::pack<T>(low[0], low[1]);
        a[m][1] = ptx::pack<T>(low[2], low[3]);
        a[m][2] = ptx::pack<T>(high[0], high[1]);
        a[m][3] = ptx::pack<T>(high[2], high[3]);
      }
#pragma unroll
      for (int n = 0; n < kTilesD; n += kTilesPerLoad) {
        u32 loaded[4];
        ptx::ldmatrix<4, true>(loaded, TileV::step(first_v, k * 16, n / kStepsPerLoad));
#pragma unroll
        for (int pair = 0; pair < kStepsPerLoad && n + 2 * pair < kTilesD; ++pair) {
          u32 b[2][2];
          value_operands(loaded, pair, b);
#pragma unroll
          for (int m = 0; m < kTilesM; ++m) {
            ptx::mma_m16n8k16<T>(out[m][n + 2 * pair], a[m], b[0][0], b[0][1]);
            ptx::mma_m16n8k16<T>(out[m][n + 2 * pair + 1], a[m], b[1][0], b[1][1]);
          }
        }
      }
    }
  }

 private:
  // Operands b0 and b1 of two n8 tiles of keys, of step `s` of what one ldmatrix loaded.
  static ATTNHUB_DEVICE void key_operands(const u32 (&loaded)[4], int s, u32 (&b)[2][2]) {
    if constexpr (Shape::Format::kIsFp8) {
      ptx::dequantize<T, Kv, ptx::Fp8Pairs::kNeighbours>(loaded[s], b[0]);
      ptx::dequantize<T, Kv, ptx::Fp8Pairs::kNeighbours>(loaded[2 + s], b[1]);
    } else {
      b[0][0] = loaded[0];
      b[0][1] = loaded[1];
      b[1][0] = loaded[2];
      b[1][1] = loaded[3];
    }
  }

  // Operands b0 and b1 of two n8 tiles of channels, of those that one ldmatrix loaded.
  static ATTNHUB_DEVICE void value_operands(const u32 (&loaded)[4], int pair, u32 (&b)[2][2]) {
    if constexpr (Shape::Format::kIsFp8) {
      u32 low[2], high[2];
      ptx::dequantize<T, Kv, ptx::Fp8Pairs::kAlternate>(loaded[2 * pair], low);
      ptx::dequantize<T, Kv, ptx::Fp8Pairs::kAlternate>(loaded[2 * pair + 1], high);
      b[0][0] = low[0];
      b[0][1] = high[0];
      b[1][0] = low[1];
      b[1][1] = high[1];
    } else {
      b[0][0] = loaded[0];
      b[0][1] = loaded[1];
      b[1][0] = loaded[2];
      b[1][1] = loaded[3];
    }
  }
};

}  // namespace attnhub::fa2
