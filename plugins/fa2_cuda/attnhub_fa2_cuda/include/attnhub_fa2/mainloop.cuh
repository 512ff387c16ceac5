// Scores, weights and weighted values of one piece: packed query rows of a tile and a range of keys.
#pragma once

#include "attnhub/attention/block_range.cuh"
#include "attnhub/attention/online_softmax.cuh"
#include "attnhub/attention/variant.cuh"
#include "attnhub/common/constants.cuh"
#include "attnhub/common/fragments.cuh"
#include "attnhub/ptx/barrier.cuh"
#include "attnhub/ptx/grid.cuh"
#include "attnhub_fa2/custom_mask.cuh"
#include "attnhub_fa2/operand_pass.cuh"
#include "attnhub_fa2/page_loader.cuh"
#include "attnhub_fa2/products.cuh"
#include "attnhub_fa2/query_tile.cuh"
#include "attnhub_fa2/row_state.cuh"
#include "attnhub_fa2/smem_plan.cuh"

namespace attnhub::fa2 {

template <class Shape, class P>
struct Mainloop {
  using T = typename Shape::Element;
  using Variant = typename P::Variant;
  using Plan = SmemPlan<Shape>;
  using TileQ = typename Shape::TileQ;
  using TileK = typename Shape::TileK;
  using TileV = typename Shape::TileV;
  using Products = fa2::Products<Shape>;
  static constexpr int kTilesM = Shape::kTilesM;
  static constexpr int kTilesN = Products::kTilesN, kTilesD = Products::kTilesD;

  static constexpr bool kChangesQueries =
      Shape::Format::kIsFp8 || Variant::kTransformsQueries || P::Rotation::kExists;
  static constexpr bool kChangesKeys = Variant::kTransformsKeys || P::Rotation::kExists;
  static_assert(!kChangesKeys || !Shape::Format::kIsFp8, "changed keys do not fit where FP8 lay");
  // Which keys a row sees is more than a range of them.
  static constexpr bool kMasksElements = Variant::kMasks || P::Mask::kExists;
  // Whether a row sees any key matters by itself, not only through its sum.
  static constexpr bool kTellsEmptyRows = fa2::kTellsEmptyRows<Variant>;
  static constexpr float kHidden = Variant::kSoftmax ? kMinusInf : 0.0f;  // a masked score

  const P& p;
  const Share& share;
  const Piece& piece;
  u32 smem;
  i32 group_idx, kv_head;
  PageLoader<Shape> loader;

  typename Products::Output out;  // before the division
  OnlineSoftmax softmax[kTilesM];
  u32 rows_with_keys;      // bit 2 m + half; only where elements are masked
  bool is_scaled_first;    // scores are multiplied by the scale before the softmax, not in it
  KeyRange seen_by_all;

  ATTNHUB_DEVICE Mainloop(const P& params, const Share& its_share, const Piece& work, u32 smem_base,
                          i32 group)
      : p(params),
        share(its_share),
        piece(work),
        smem(smem_base),
        group_idx(group),
        kv_head(group / its_share.groups_per_kv),
        loader{p.k, p.v, p.table, work.request, kv_head, work.kv_end, {0, 0}},
        out{},
        rows_with_keys(0) {
    const i32 first = piece.tile * share.section.tile_tokens;
    const i32 last = min(first + share.section.tile_tokens, piece.request.qo_len) - 1;
    seen_by_all = in_piece({visible_keys(piece.request, share.section, last).begin,
                            visible_keys(piece.request, share.section, first).end});
    // The softmax looks for the largest score, so its own scale must be above 0.
    const bool scales_vary = p.scales_q.values != nullptr || p.scales_k.values != nullptr;
    is_scaled_first =
        Variant::kTransformsScores || !Variant::kSoftmax || p.scale <= 0 || scales_vary;
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
  ATTNHUB_DEVICE TileRow tile_row(int m, int half) const {
    return ptx::ld_shared<TileRow>(tile_row_at(row_of(m, half)));
  }
  // NOTE: factors that a hook has to see before the product are in its elements instead.
  ATTNHUB_DEVICE void write_rows() const {
    for (i32 row = threadIdx.x; row < Shape::kBlockM; row += Shape::kThreads) {
      TileRow found = {p.scale, query_row(share, piece, group_idx, row)};
      if constexpr (!Variant::kTransformsKeys) found.scale *= p.scales_k.of(kv_head);
      if constexpr (!Variant::kTransformsQueries) {
        if (found.query.is_valid) found.scale *= p.scales_q.of(found.query.head);
      }
      ptx::st_shared(tile_row_at(row), found);
    }
  }

  // Of what goes into the softmax.
  ATTNHUB_DEVICE float softmax_scale() const { return is_scaled_first ? 1.0f : p.scale; }

  ATTNHUB_DEVICE KeyRange in_piece(KeyRange range) const {
    return {max(range.begin, piece.kv_begin), min(range.end, piece.kv_end)};
  }
  ATTNHUB_DEVICE KeyRange keys_of(const QueryRow& row) const {
    return in_piece(visible_keys(piece.request, share.section, row.qo_idx));
  }
  ATTNHUB_DEVICE bool masks_elements() const { return Variant::kMasks || p.mask.is_given(); }
  // Of this piece. Where elements are masked, after finish().
  ATTNHUB_DEVICE bool sees_keys(int m, int half) const {
    if (masks_elements()) return (rows_with_keys >> (2 * m + half) & 1) != 0;
    const KeyRange keys = keys_of(tile_row(m, half).query);
    return keys.begin < keys.end;
  }

  template <class Member>
  ATTNHUB_DEVICE u32 operand(Member Operands<Shape>::* member) const {
    return smem + ptx::offset_of(&Plan::operands) + ptx::offset_of(member);
  }
  ATTNHUB_DEVICE u32 stage_k(i32 block) const {
    return operand(&Operands<Shape>::k) + block % Shape::kStages * TileK::kBytes;
  }
  ATTNHUB_DEVICE u32 stage_v(i32 block) const {
    return operand(&Operands<Shape>::v) + block % Shape::kStages * TileV::kBytes;
  }
  ATTNHUB_DEVICE i32 first_key_of(i32 block) const {
    return piece.kv_begin + block * Shape::kBlockN;
  }

  ATTNHUB_DEVICE void load_queries() const {
    const int part = threadIdx.x / TileQ::kLanes, chunk = threadIdx.x % TileQ::kLanes;
#pragma unroll
    for (int i = 0; i < Shape::kBlockM / Shape::kRowsPerCopy; ++i) {
      const i32 row = i * Shape::kRowsPerCopy + part;
      const QueryRow at = query_row(share, piece, group_idx, row);
      const T* from = p.q + i64(piece.request.qo_begin + at.qo_idx) * p.stride_q_token +
                      at.head * p.stride_q_head;
      TileQ::copy_row(operand(&Operands<Shape>::q) + TileQ::offset(row, chunk), from, at.is_valid);
    }
  }

  ATTNHUB_DEVICE void load_block(i32 block) {
    const i32 first_key = first_key_of(block);
    if (first_key < piece.kv_end) {
      loader.load(stage_k(block), stage_v(block), first_key);
      loader.look_up(first_key + Shape::kBlockN);
    }
    ptx::cp_async_commit();  // also when empty, so that the count of groups stays the same
  }

  // NOTE: the hooks see what is stored times its scales, and a rotation what the hooks gave.
  ATTNHUB_DEVICE void change_queries() const {
    const u32 tile = operand(&Operands<Shape>::q);
    if constexpr (Variant::kTransformsQueries || P::Rotation::kExists) {
      i32 first_position = 0;
      if constexpr (P::Rotation::kExists) {
        first_position = p.rotation.first_query(piece.request_idx, piece.request);
      }
      const auto change = [&](int row, int idx, const int(&channels)[2], float(&pair)[2]) {
        const QueryRow at = query_row(share, piece, group_idx, row);
        if (!at.is_valid) return;
        if constexpr (Variant::kTransformsQueries) {
          const float scale = p.scale_q * p.scales_q.of(at.head);
          for (int e = 0; e < 2; ++e) {
            pair[e] = p.variant.query({piece.request_idx, at.qo_idx, at.head, piece.request.qo_len,
                                       piece.request.kv_len, channels[e]},
                                      pair[e] * scale);
          }
        }
        if constexpr (P::Rotation::kExists) {
          if (idx < P::Rotation::Pairs::kCount) {
            p.rotation.turn(pair, idx, first_position + at.qo_idx);
          }
        }
      };
      using R = typename P::Rotation;
      change_pairs<TileQ, T, Shape::kDimQk, Shape::kThreads, R>(tile, change);
      if constexpr (Shape::Format::kIsFp8) ptx::sync_threads();
    }
    if constexpr (Shape::Format::kIsFp8) {
      reorder_for_fp8<TileQ, Shape::kDimQk, Shape::kThreads>(tile);
    }
  }

  ATTNHUB_DEVICE void change_keys(i32 block) const {
    i32 first_position = 0;
    if constexpr (P::Rotation::kExists) first_position = p.rotation.first_key(piece.request_idx);
    const float scale = p.scale_k * p.scales_k.of(kv_head);
    const auto change = [&](int row, int idx, const int(&channels)[2], float(&pair)[2]) {
      const i32 key = first_key_of(block) + row;
      if (key >= piece.kv_end) return;
      if constexpr (Variant::kTransformsKeys) {
        for (int e = 0; e < 2; ++e) {
          pair[e] =
              p.variant.key({piece.request_idx, key, kv_head, channels[e]}, pair[e] * scale);
        }
      }
      if constexpr (P::Rotation::kExists) {
        if (idx < P::Rotation::Pairs::kCount) p.rotation.turn(pair, idx, first_position + key);
      }
    };
    using R = typename P::Rotation;
    change_pairs<TileK, T, Shape::kDimQk, Shape::kThreads, R>(stage_k(block), change);
  }

  // What turns products into scores: scale, variant, masks; of one m16 tile.
  ATTNHUB_DEVICE void transform(float (&scores)[kTilesN][4], int m, i32 first_key) {
    const bool needs_mask = !seen_by_all.holds(first_key, first_key + Shape::kWarpKeys - 1);
    if (!Variant::kTransformsScores && !masks_elements() && !needs_mask && !is_scaled_first) return;
    const TileRow rows[2] = {tile_row(m, 0), tile_row(m, 1)};
    if (is_scaled_first) {
#pragma unroll
      for (int n = 0; n < kTilesN; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) scores[n][e] *= rows[e / 2].scale;
      }
    }
    if constexpr (Variant::kTransformsScores) {
      each_score(rows, first_key, [&](int n, int e, const ScorePosition& at) {
        scores[n][e] = p.variant.score(at, scores[n][e]);
      });
    }
    if (masks_elements()) {
      if constexpr (kMasksElements) mask_elements(scores, m, rows, first_key);
    } else if (needs_mask) {
      const KeyRange keys[2] = {keys_of(rows[0].query), keys_of(rows[1].query)};
      mask_scores(scores, keys, first_key, kHidden);
    }
  }

  template <class Visit>
  ATTNHUB_DEVICE void each_score(const TileRow (&rows)[2], i32 first_key, Visit visit) const {
#pragma unroll
    for (int n = 0; n < kTilesN; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const QueryRow& row = rows[e / 2].query;
        const i32 key = first_key + Accumulator::column(ptx::lane_idx(), n * 4 + e);
        visit(n, e,
              ScorePosition{piece.request_idx, row.qo_idx, key, row.head, piece.request.qo_len,
                            piece.request.kv_len});
      }
    }
  }

  // Hides the scores that the range, the custom mask or the variant keeps a row from seeing, and
  // notes which rows see any.
  ATTNHUB_DEVICE void mask_elements(float (&scores)[kTilesN][4], int m, const TileRow (&rows)[2],
                                    i32 first_key) {
    const KeyRange keys[2] = {keys_of(rows[0].query), keys_of(rows[1].query)};
    u32 words[2][(Shape::kWarpKeys + 31) / 32];
    if constexpr (P::Mask::kExists) {
      const auto mask = p.mask.of(piece.request_idx, piece.request);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int w = 0; w * 32 < Shape::kWarpKeys; ++w) {
          words[half][w] = mask.keys(rows[half].query.qo_idx, first_key + w * 32);
        }
      }
    }
    each_score(rows, first_key, [&](int n, int e, const ScorePosition& at) {
      const KeyRange& range = keys[e / 2];
      bool is_seen = at.kv_idx >= range.begin && at.kv_idx < range.end;
      if constexpr (P::Mask::kExists) {
        const int column = at.kv_idx - first_key;
        is_seen = is_seen && (words[e / 2][n / 4] >> column % 32 & 1) != 0;
      }
      if constexpr (Variant::kMasks) is_seen = is_seen && p.variant.keeps(at);
      scores[n][e] = is_seen ? scores[n][e] : kHidden;
      if (kTellsEmptyRows && is_seen) rows_with_keys |= 1u << (2 * m + e / 2);
    });
  }

  ATTNHUB_DEVICE void compute_block(i32 block) {
    const int first_row = ptx::warp_idx() / Shape::kWarpsM * Shape::kWarpKeys;
    typename Products::Scores scores = {};
    Products::add_scores(scores, operand(&Operands<Shape>::q), warp_row(), stage_k(block), first_row);
#pragma unroll
    for (int m = 0; m < kTilesM; ++m) {
      transform(scores[m], m, first_key_of(block) + first_row);
      if constexpr (Variant::kSoftmax) {
        float shrink[2];
        constexpr bool kAnySize = Variant::kTransformsScores;
        if (!softmax[m].template update<kAnySize>(scores[m], kLog2E * softmax_scale(), shrink)) continue;
#pragma unroll
        for (int n = 0; n < kTilesD; ++n) {
#pragma unroll
          for (int e = 0; e < 4; ++e) out[m][n][e] *= shrink[e / 2];
        }
      }
    }
    Products::add_values(out, scores, stage_v(block), first_row);
  }

  // NOTE: the caller has a barrier between the last use of shared memory and this.
  ATTNHUB_DEVICE void run() {
    const i32 num_keys = piece.kv_end - piece.kv_begin;
    const i32 num_blocks = (num_keys + Shape::kBlockN - 1) / Shape::kBlockN;
    loader.look_up(piece.kv_begin);
    // NOTE: what the plan wrote may be read before, since the host lets only those launches begin
    // early that another one separates from the plan. All else is there when the kernel ahead ends.
    ptx::grid_wait();
    write_rows();
    load_queries();  // in the group of the first block
#pragma unroll
    for (int i = 0; i < Shape::kStages - 1; ++i) load_block(i);
    for (i32 block = 0; block < num_blocks; ++block) {
      ptx::cp_async_wait<Shape::kStages - 2>();
      ptx::sync_threads();
      load_block(block + Shape::kStages - 1);
      if constexpr (kChangesQueries) {
        if (block == 0) change_queries();
      }
      if constexpr (kChangesKeys) change_keys(block);
      if (kChangesKeys || (kChangesQueries && block == 0)) ptx::sync_threads();
      compute_block(block);
    }
    ptx::cp_async_wait<0>();
    if (num_blocks == 0) ptx::sync_threads();  // the queries, which the epilogue overwrites
    finish();
  }

  // What the sum of a row is relative to, in natural units; -inf says that it saw no key. NOTE: the
  // sum of a row of NaN is NaN while its maximum, which fmaxf takes, may be -inf.
  ATTNHUB_DEVICE float natural_max(int m, int half) const {
    if constexpr (kTellsEmptyRows) {
      if (!sees_keys(m, half)) return kMinusInf;
    }
    if constexpr (!Variant::kSoftmax) return 0.0f;
    const float max = softmax[m].max[half], sum = softmax[m].sum[half];
    if (sum == 0.0f) return kTellsEmptyRows ? kOnlyMinusInf : kMinusInf;
    return max == kMinusInf ? sum : max * softmax_scale();
  }
  ATTNHUB_DEVICE float sum_of(int m, int half) const {
    return Variant::kSoftmax ? softmax[m].sum[half] : 1.0f;
  }

  // What the four lanes of a row have, together.
  ATTNHUB_DEVICE void finish() {
#pragma unroll
    for (int m = 0; m < kTilesM; ++m) softmax[m].finish();
    if constexpr (kMasksElements && kTellsEmptyRows) {
      rows_with_keys |= ptx::shuffle_xor(rows_with_keys, 1);
      rows_with_keys |= ptx::shuffle_xor(rows_with_keys, 2);
    }
  }
};

}  // namespace attnhub::fa2
