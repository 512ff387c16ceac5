// Where the ranges of workers begin. Each cut follows from the prefix sums of the batch alone, so
// that all can be found at the same time.
#pragma once

#include "attnhub/attention/schedule.cuh"
#include "attnhub/attention/tile_costs.cuh"
#include "attnhub/common/types.cuh"
#include "attnhub/ptx/math.cuh"

namespace attnhub {

// A cut, and what WorkerRange says of where it lies.
struct PlacedCut {
  Cut cut;
  Request request;
  i32 first_slot, num_pieces, next_request;
};

// The keys where a tile may be cut: first, first + kv_block, ..., last; none if first > last.
struct TileCuts {
  i64 first, last;

  ATTNHUB_HOST_DEVICE TileCuts(KeyRange keys, const Section& section) : first(1), last(0) {
    if (keys.end - keys.begin < 2 * i64(section.min_piece)) return;
    first = (i64(section.blocks.divide(keys.begin + section.min_piece - 1)) + 1) *
            section.blocks.divisor;
    last = i64(section.blocks.divide(keys.end - section.min_piece)) * section.blocks.divisor;
  }
};

// `Batch` has `size` requests that cost `total`, and gives cost_before(r), the cost of those before
// r; find(cost), the request that a cost below the total falls into; request(r); next_request(r),
// the next that the section takes, or `size`; and, where is_fixed, first_slot(r).
template <class Batch>
class Cutter {
 public:
  ATTNHUB_HOST_DEVICE Cutter(const Batch& batch, const Section& section)
      : batch_(batch), section_(section) {
    // NOTE: rounded up, exactly below 2^30, where quotients that are no integer are 2^-20 off one.
    constexpr double kAlmostOne = 1 - 0x1p-21;
    const i64 equal = i64(double(batch.total) * section.per_worker + kAlmostOne);
    // NOTE: a share below the cost of a visit is no help, and shares of min_piece or more keep the
    // cuts of a tile that far apart.
    share_ = max(equal, i64(max(section.tile_cost, section.min_piece)));
    per_share_ = ptx::rcp(float(share_));
  }

  // Where the range of a worker begins; that of num_workers is the end of all work.
  ATTNHUB_HOST_DEVICE PlacedCut cut(i32 worker) const {
    const i64 cost = worker * share_;
    if (worker == section_.num_workers || cost >= batch_.total) return begin_of(batch_.size);
    return in_request(batch_.find(cost), cost);
  }

 private:
  // The first worker whose share begins at a cost or later. NOTE: the product is less than half off
  // the quotient, which is at most the number of workers.
  ATTNHUB_HOST_DEVICE i32 worker_from(i64 cost) const {
    const i32 nearest = i32(float(cost) * per_share_ + 0.5f);
    return nearest * share_ < cost ? nearest + 1 : nearest;
  }

  ATTNHUB_HOST_DEVICE PlacedCut begin_of(i32 r) const {
    PlacedCut placed = {{r, 0, 0, 0}, {0, 0, 0, 0}, -1, 0, r};
    if (r == batch_.size) return placed;
    placed.request = batch_.request(r);
    if (section_.is_fixed) placed.first_slot = batch_.first_slot(r);
    placed.next_request = batch_.next_request(r);
    return placed;
  }

  ATTNHUB_HOST_DEVICE PlacedCut begin_of_next_tile(PlacedCut placed) const {
    if (++placed.cut.tile < section_.num_tiles(placed.request)) return placed;
    placed.cut.tile = 0;
    if (++placed.cut.head < section_.num_heads) return placed;
    return begin_of(placed.next_request);
  }

  ATTNHUB_HOST_DEVICE PlacedCut in_request(i32 r, i64 cost) const {
    const i64 before = batch_.cost_before(r);
    PlacedCut placed = begin_of(r);
    const TilePlace place = find_tile(placed.request, section_, cost - before);
    placed.cut.head = place.head;
    placed.cut.tile = place.tile;

    const KeyRange keys = section_.keys(placed.request, place.tile);
    const TileCuts cuts(keys, section_);
    const bool stays_whole = section_.is_fixed && placed.first_slot < 0;
    // In this tile a key and the cost before it differ by this.
    const i64 from_key = before + place.before + section_.tile_cost - keys.begin;
    const i64 at = cost - from_key;
    i64 end = (i64(keys.begin) + keys.end - section_.tile_cost) / 2;
    if (!stays_whole && cuts.first <= cuts.last) {
      // To the nearest: from `begin` on the first cut is, and from `end` on the tile's end is.
      const i64 block = section_.blocks.divisor, half = block / 2;
      const i64 begin = max(cuts.first - half, i64(keys.begin));
      end = cuts.last + block - half;
      if (at >= begin && at < end) {
        placed.cut.key = i32(section_.blocks.divide(u32(min(at + half, cuts.last))) * block);
        if (!section_.is_fixed) {
          const i32 first = worker_from(begin + from_key);
          placed.first_slot = 2 * (first - 1);
          placed.num_pieces = worker_from(end + from_key) - first + 1;
        }
      }
    }
    return at < end ? placed : begin_of_next_tile(placed);
  }

  const Batch& batch_;
  const Section& section_;
  i64 share_;
  float per_share_;
};

}  // namespace attnhub
