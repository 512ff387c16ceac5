// Scores, softmax and weighted values of one piece: packed query rows of a tile and a range of keys.
#pragma once

#include "attnhub/attention/block_range.cuh"
#include "attnhub/attention/online_softmax.cuh"
#include "attnhub/attention/variant.cuh"
#include "attnhub/common/constants.cuh"
#include "attnhub/common/fragments.cuh"
#include "attnhub/ptx/barrier.cuh"
#include "attnhub/ptx/convert.cuh"
#include "attnhub/ptx/ldmatrix.cuh"
#include "attnhub/ptx/mma_sm80.cuh"
#include "attnhub_fa2/page_loader.cuh"
#include "attnhub_fa2/query_tile.cuh"
#include "attnhub_fa2/smem_plan.cuh"

namespace attnhub::fa2 {

template <class Shape, class Variant>
struct Mainloop {
  using T = typename Shape::Element;
  using P = Params<Shape, Variant>;
  using Plan = SmemPlan<Shape>;
  using TileQ = typename Shape::TileQ;
  using TileKv = typename Shape::TileKv;
  using RowsFirst = LdmatrixAddress<Ldmatrix::kRowsFirst>;
  using ChunksFirst = LdmatrixAddress<Ldmatrix::kChunksFirst>;
  static constexpr int kTilesM = Shape::kTilesM;
  static constexpr int kTilesN = Shape::kWarpKeys / 8;  // of a warp's scores
  static constexpr int kTilesD = Shape::kHeadDim / 8;   // of its output

  const P& p;
  const Piece& piece;
  u32 smem;
  i32 group_idx, kv_head;
  PageLoader<Shape> loader;

  float out[kTilesM][kTilesD][4];  // (m16 tiles, n8 tiles, fragment of D), before the division
  OnlineSoftmax softmax[kTilesM];
  bool is_scaled_first;  // scores are multiplied by the scale before the softmax, not in it
  KeyRange seen_by_all;

  ATTNHUB_DEVICE Mainloop(const P& params, const Piece& work, u32 smem_base, i32 group)
      : p(params),
        piece(work),
        smem(smem_base),
        group_idx(group),
        kv_head(group / p.groups_per_kv),
        loader{p.k, p.v, p.table, work.request, kv_head, work.kv_end, {0, 0}},
        out{} {
    const i32 first = piece.tile * p.section.tile_tokens;
    const i32 last = min(first + p.section.tile_tokens, piece.request.qo_len) - 1;
    seen_by_all = in_piece({visible_keys(piece.request, p.section, last).begin,
                            visible_keys(piece.request, p.section, first).end});
    // The softmax looks for the largest score, so its own scale must be above 0.
    const bool scales_vary = p.scales_q.values != nullptr || p.scales_k.values != nullptr;
    is_scaled_first = Variant::kTransformsScores || p.scale <= 0 || scales_vary;
  }

  static ATTNHUB_DEVICE int warp_row() {
    return ptx::warp_idx() % Shape::kWarpsM * Shape::kWarpRows;
  }
  // The tile's row of which this lane holds elements 2 half and 2 half + 1 of each fragment.
  static ATTNHUB_DEVICE int row_of(int m, int half) {
    return warp_row() + m * 16 + Accumulator::row(ptx::lane_idx(), half * 2);
  }

  ATTNHUB_DEVICE u32 tile_row_at(int row) const {
    return smem + ptx::offset_of(&Plan::rows) + row * u32(sizeof(TileRow));
  }
  ATTNHUB_DEVICE void write_rows() const {
    for (i32 row = threadIdx.x; row < Shape::kBlockM; row += Shape::kThreads) {
      TileRow found = {p.scale * p.scales_k.of(kv_head), query_row(p, piece, group_idx, row)};
      if (found.query.is_valid) found.scale *= p.scales_q.of(found.query.head);
      ptx::st_shared(tile_row_at(row), found);
    }
  }

  // Of what goes into the softmax.
  ATTNHUB_DEVICE float softmax_scale() const { return is_scaled_first ? 1.0f : p.scale; }

  ATTNHUB_DEVICE KeyRange in_piece(KeyRange range) const {
    return {max(range.begin, piece.kv_begin), min(range.end, piece.kv_end)};
  }

  template <class Member>
  ATTNHUB_DEVICE u32 operand(Member Operands<Shape>::* member) const {
    return smem + ptx::offset_of(&Plan::operands) + ptx::offset_of(member);
  }
  ATTNHUB_DEVICE u32 stage_k(int stage) const {
    return operand(&Operands<Shape>::k) + stage * TileKv::kBytes;
  }
  ATTNHUB_DEVICE u32 stage_v(int stage) const {
    return operand(&Operands<Shape>::v) + stage * TileKv::kBytes;
  }

  ATTNHUB_DEVICE void load_queries() const {
    const int chunk = threadIdx.x % Shape::kChunks;
#pragma unroll
    for (int i = 0; i < Shape::kBlockM / Shape::kRowsPerCopy; ++i) {
      const i32 row = i * Shape::kRowsPerCopy + threadIdx.x / Shape::kChunks;
      const QueryRow at = query_row(p, piece, group_idx, row);
      const T* from = p.q + i64(piece.request.qo_begin + at.qo_idx) * p.stride_q_token +
                      at.head * p.stride_q_head;
      ptx::cp_async<16>(operand(&Operands<Shape>::q) + TileQ::offset(row, chunk),
                        from + chunk * Shape::kChunk, at.is_valid);
    }
  }

  ATTNHUB_DEVICE void load_block(i32 block) {
    const i32 first_key = piece.kv_begin + block * Shape::kBlockN;
    const int stage = block % Shape::kStages;
    if (first_key < piece.kv_end) {
      loader.load(stage_k(stage), stage_v(stage), first_key);
      loader.look_up(first_key + Shape::kBlockN);
    }
    ptx::cp_async_commit();  // also when empty, so that the count of groups stays the same
  }

  // scores = Q K^T of this warp's rows and keys of a block.
  ATTNHUB_DEVICE void multiply_keys(float (&scores)[kTilesM][kTilesN][4], u32 tile,
                                    int first_row) const {
    const int lane = ptx::lane_idx();
    const u32 first_q = operand(&Operands<Shape>::q) +
                        TileQ::offset(warp_row() + RowsFirst::row(lane), RowsFirst::chunk(lane));
    const u32 first_k =
        tile + TileKv::offset(first_row + ChunksFirst::row(lane), ChunksFirst::chunk(lane));
#pragma unroll
    for (int k = 0; k < Shape::kHeadDim / 16; ++k) {
      u32 q[kTilesM][4];
#pragma unroll
      for (int m = 0; m < kTilesM; ++m) ptx::ldmatrix(q[m], TileQ::step(first_q, m * 16, k * 2));
#pragma unroll
      for (int n = 0; n < kTilesN; n += 2) {
        u32 b[4];
        ptx::ldmatrix(b, TileKv::step(first_k, n * 8, k * 2));
#pragma unroll
        for (int m = 0; m < kTilesM; ++m) {
          ptx::mma_m16n8k16<T>(scores[m][n], q[m], b[0], b[1]);
          ptx::mma_m16n8k16<T>(scores[m][n + 1], q[m], b[2], b[3]);
        }
      }
    }
  }

  // What turns products into scores: scale, variant, masks; of one m16 tile.
  ATTNHUB_DEVICE void transform(float (&scores)[kTilesN][4], int m, i32 first_key) const {
    const bool needs_mask = !seen_by_all.holds(first_key, first_key + Shape::kWarpKeys - 1);
    constexpr bool kHasHooks = Variant::kTransformsScores || Variant::kMasks;
    if (!kHasHooks && !needs_mask && !is_scaled_first) return;
    const TileRow rows[2] = {ptx::ld_shared<TileRow>(tile_row_at(row_of(m, 0))),
                             ptx::ld_shared<TileRow>(tile_row_at(row_of(m, 1)))};
    if (is_scaled_first) {
#pragma unroll
      for (int n = 0; n < kTilesN; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) scores[n][e] *= rows[e / 2].scale;
      }
    }
    if constexpr (kHasHooks) apply_variant(scores, rows, first_key);
    if (needs_mask) {
      const KeyRange keys[2] = {
          in_piece(visible_keys(piece.request, p.section, rows[0].query.qo_idx)),
          in_piece(visible_keys(piece.request, p.section, rows[1].query.qo_idx)),
      };
      mask_scores(scores, keys, first_key);
    }
  }

  ATTNHUB_DEVICE void apply_variant(float (&scores)[kTilesN][4], const TileRow (&rows)[2],
                                    i32 first_key) const {
#pragma unroll
    for (int n = 0; n < kTilesN; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const QueryRow& row = rows[e / 2].query;
        const i32 key = first_key + Accumulator::column(ptx::lane_idx(), n * 4 + e);
        const ScorePosition at{piece.request_idx,    row.qo_idx, key, row.head,
                               piece.request.qo_len, piece.request.kv_len};
        if constexpr (Variant::kTransformsScores) scores[n][e] = p.variant.score(at, scores[n][e]);
        if constexpr (Variant::kMasks) {
          if (!p.variant.keeps(at)) scores[n][e] = kMinusInf;
        }
      }
    }
  }

  // out += P V. The fragment of D that holds two n8 tiles of scores is one of A of this product.
  ATTNHUB_DEVICE void multiply_values(const float (&probs)[kTilesM][kTilesN][4], u32 tile,
                                      int first_row) {
    const int lane = ptx::lane_idx();
    const u32 first_v =
        tile + TileKv::offset(first_row + RowsFirst::row(lane), RowsFirst::chunk(lane));
#pragma unroll
    for (int k = 0; k < kTilesN / 2; ++k) {
      u32 a[kTilesM][4];
#pragma unroll
      for (int m = 0; m < kTilesM; ++m) {
        const float(&low)[4] = probs[m][k * 2];
        const float(&high)[4] = probs[m][k * 2 + 1];
        a[m][0] = ptx::pack<T>(low[0], low[1]);
        a[m][1] = ptx::pack<T>(low[2], low[3]);
        a[m][2] = ptx::pack<T>(high[0], high[1]);
        a[m][3] = ptx::pack<T>(high[2], high[3]);
      }
#pragma unroll
      for (int n = 0; n < kTilesD; n += 2) {
        u32 b[4];
        ptx::ldmatrix<4, true>(b, TileKv::step(first_v, k * 16, n));
#pragma unroll
        for (int m = 0; m < kTilesM; ++m) {
          ptx::mma_m16n8k16<T>(out[m][n], a[m], b[0], b[1]);
          ptx::mma_m16n8k16<T>(out[m][n + 1], a[m], b[2], b[3]);
        }
      }
    }
  }

  ATTNHUB_DEVICE void compute_block(i32 block) {
    const int stage = block % Shape::kStages;
    const int first_row = ptx::warp_idx() / Shape::kWarpsM * Shape::kWarpKeys;
    float scores[kTilesM][kTilesN][4] = {};
    multiply_keys(scores, stage_k(stage), first_row);
#pragma unroll
    for (int m = 0; m < kTilesM; ++m) {
      float shrink[2];
      transform(scores[m], m, piece.kv_begin + block * Shape::kBlockN + first_row);
      if (!softmax[m].update(scores[m], kLog2E * softmax_scale(), shrink)) continue;
#pragma unroll
      for (int n = 0; n < kTilesD; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) out[m][n][e] *= shrink[e / 2];
      }
    }
    multiply_values(scores, stage_v(stage), first_row);
  }

  // NOTE: the caller has a barrier between the last use of shared memory and this.
  ATTNHUB_DEVICE void run() {
    const i32 num_keys = piece.kv_end - piece.kv_begin;
    const i32 num_blocks = (num_keys + Shape::kBlockN - 1) / Shape::kBlockN;
    loader.look_up(piece.kv_begin);
    write_rows();
    load_queries();  // in the group of the first block
#pragma unroll
    for (int i = 0; i < Shape::kStages - 1; ++i) load_block(i);
    for (i32 block = 0; block < num_blocks; ++block) {
      ptx::cp_async_wait<Shape::kStages - 2>();
      ptx::sync_threads();
      load_block(block + Shape::kStages - 1);
      compute_block(block);
    }
    ptx::cp_async_wait<0>();
    if (num_blocks == 0) ptx::sync_threads();  // the queries, which the epilogue overwrites
#pragma unroll
    for (int m = 0; m < kTilesM; ++m) softmax[m].finish();
  }
};

}  // namespace attnhub::fa2
