// The work of a batch, as the plan kernel (plan.cuh) cut it up, read by a persistent kernel: each
// worker takes its range and visits it piece by piece. docs/kernels/scheduler.md has the model.
#pragma once

#include "attnhub/attention/block_range.cuh"
#include "attnhub/attention/request.cuh"
#include "attnhub/common/fastdiv.cuh"
#include "attnhub/common/types.cuh"
#include "attnhub/ptx/memory.cuh"

namespace attnhub {

// One way of tiling, for the requests with as many queries as it takes. Work is in the order
// (request, head, tile, key), and its cost is that of its tiles: tile_cost, and one for each key
// that a tile sees.
struct Section {
  i32 num_workers;
  i32 num_heads;               // in that order; 1 where heads are a dimension of the grid
  i32 min_qo_len, max_qo_len;  // which requests it takes
  i32 tile_tokens;             // queries of a tile
  i32 tile_cost;
  i32 min_piece;   // keys; a multiple of kv_block, but 1 where is_fixed
  i32 is_fixed;    // tiles are cut at every multiple of kv_block, whatever else is in the batch
  i32 max_pieces;  // of one tile, as far as the window says; for is_fixed
  i32 num_slots;   // for partial results
  Window window;
  FastDiv tiles;      // by tile_tokens: the tile of a query
  FastDiv blocks;     // by kv_block: the block of a key. Tiles are cut between blocks only
  double per_worker;  // 1 / num_workers

  // NOTE: no &&, for which one bound would be read after the comparison with the other.
  ATTNHUB_HOST_DEVICE bool takes(const Request& request) const {
    return (request.qo_len >= min_qo_len) & (request.qo_len <= max_qo_len);
  }
  // Of a request that it takes.
  ATTNHUB_HOST_DEVICE i32 num_tiles(const Request& request) const {
    return i32(tiles.divide(request.qo_len - 1)) + 1;
  }
  ATTNHUB_HOST_DEVICE KeyRange keys(const Request& request, i32 tile) const {
    const i64 first = i64(tile) * tile_tokens;
    return visible_keys(request, window, first, first + tile_tokens - 1);
  }
  // Pieces of a tile that sees these keys, where is_fixed. One that sees nothing is visited too.
  ATTNHUB_HOST_DEVICE i32 num_pieces(KeyRange keys) const {
    if (keys.begin == keys.end) return 1;
    return i32(blocks.divide(keys.end - 1) - blocks.divide(keys.begin)) + 1;
  }
  // The slots of each tile of a request, where is_fixed: no tile has more pieces.
  ATTNHUB_HOST_DEVICE i32 tile_slots(const Request& request) const {
    return min(num_pieces(KeyRange{0, request.kv_len}), max_pieces);
  }
};

// What one query sees.
ATTNHUB_HOST_DEVICE KeyRange visible_keys(const Request& request, const Section& section,
                                          i32 query) {
  return visible_keys(request, section.window, query, query);
}

// A place in the order of a section; key 0 is where its tile begins, whatever key that is.
struct alignas(16) Cut {
  i32 request, head, tile, key;

  ATTNHUB_HOST_DEVICE bool operator==(const Cut& other) const {
    return request == other.request && head == other.head && tile == other.tile && key == other.key;
  }
};

// All that a worker needs to start, so that its loads do not wait for each other.
struct alignas(16) WorkerRange {
  Cut begin, end;
  Request first;     // the request of `begin`
  i32 first_slot;    // of the tile of `begin`; where is_fixed, of the whole request, or -1
  i32 num_pieces;    // of the tile of `begin`, if that is cut there
  i32 next_request;  // after that of `begin`
  i32 end_pieces;    // of the tile of `end`, if that is cut there
};
static_assert(sizeof(WorkerRange) == 64, "attnhub/kernels/schedule.py lays these out");

// What the plan kernel wrote for one section.
struct Schedule {
  const Request* requests;    // [batch], of all sections
  const WorkerRange* ranges;  // [num_workers]
  const i32* next_requests;   // [batch]: the next that this section takes, or batch
  const i32* first_slots;     // [batch]: where is_fixed, of the request's first tile, or -1
  i32* counters;              // [num_slots / 2, CTAs of a worker]: zero before and after a run
};

// Keys of one tile for one worker.
struct Piece {
  i32 request_idx;
  Request request;
  i32 head, tile;
  i32 kv_begin, kv_end;
  i32 piece_idx, num_pieces;  // of the tile
  // For tiles of several pieces: where these leave their results, and which counter says how many
  // have. The last to come merges, and sets the counter to zero.
  i32 first_slot, counter;

  ATTNHUB_HOST_DEVICE bool is_whole() const { return num_pieces == 1; }
  ATTNHUB_HOST_DEVICE i32 slot(i32 i) const { return first_slot + i; }
};

// The range of one worker. Every thread that asks gets the same pieces. A copy goes on from where
// the original is, so that a producer may run ahead.
class WorkRange {
 public:
  ATTNHUB_DEVICE WorkRange(const Schedule& schedule, const Section& section, i32 worker)
      : schedule_(schedule), section_(section), worker_(worker) {
    const WorkerRange* range = schedule.ranges + worker;
    at_ = ptx::ld_global(&range->begin);
    end_ = ptx::ld_global(&range->end);
    request_ = ptx::ld_global(&range->first);
    const auto rest = ptx::ld_global(reinterpret_cast<const Vec<i32, 4>*>(&range->first_slot));
    first_slot_ = rest[0];
    num_pieces_ = rest[1];
    next_request_ = rest[2];
    end_pieces_ = rest[3];
  }

  // False at the end of the range.
  ATTNHUB_DEVICE bool next(Piece& piece) {
    if (at_ == end_) return false;
    const KeyRange keys = section_.keys(request_, at_.tile);
    piece = Piece{at_.request, request_, at_.head, at_.tile, at_.key > 0 ? at_.key : keys.begin,
                  keys.end, 0, 1, 0, 0};
    if (section_.is_fixed) {
      if (first_slot_ >= 0) take_fixed(piece, keys);
    } else {
      take_balanced(piece);
    }
    piece.counter = piece.first_slot / 2;
    go_on(piece.kv_end, keys.end);
    return true;
  }

 private:
  ATTNHUB_DEVICE bool is_last_tile() const {
    return at_.request == end_.request && at_.head == end_.head && at_.tile == end_.tile;
  }

  // Workers cut a tile among them: the one where it begins owns its slots.
  ATTNHUB_DEVICE void take_balanced(Piece& piece) const {
    const bool ends_here = is_last_tile();
    if (ends_here) piece.kv_end = end_.key;
    if (at_.key > 0) {
      piece.first_slot = first_slot_;
      piece.piece_idx = worker_ - first_slot_ / 2;
      piece.num_pieces = num_pieces_;
    } else if (ends_here) {
      piece.first_slot = 2 * worker_;
      piece.num_pieces = end_pieces_;
    }
  }

  ATTNHUB_DEVICE void take_fixed(Piece& piece, KeyRange keys) const {
    const i32 first_block = i32(section_.blocks.divide(keys.begin));
    const i32 block = i32(section_.blocks.divide(piece.kv_begin));
    piece.kv_end = i32(min(i64(block + 1) * section_.blocks.divisor, i64(keys.end)));
    const i32 tile = at_.head * section_.num_tiles(request_) + at_.tile;
    piece.first_slot = first_slot_ + tile * section_.tile_slots(request_);
    piece.piece_idx = block - first_block;
    piece.num_pieces = section_.num_pieces(keys);
  }

  ATTNHUB_DEVICE void go_on(i32 key, i32 tile_end) {
    at_.key = key < tile_end ? key : 0;
    if (at_.key > 0 || ++at_.tile < section_.num_tiles(request_)) return;
    at_.tile = 0;
    if (++at_.head < section_.num_heads) return;
    at_.head = 0;
    at_.request = next_request_;
    if (at_ == end_) return;
    request_ = ptx::ld_global(schedule_.requests + at_.request);
    next_request_ = ptx::ld_global(schedule_.next_requests + at_.request);
    if (section_.is_fixed) first_slot_ = ptx::ld_global(schedule_.first_slots + at_.request);
  }

  const Schedule& schedule_;
  const Section& section_;
  i32 worker_;
  Cut at_, end_;
  Request request_;
  i32 first_slot_, num_pieces_, next_request_, end_pieces_;
};

}  // namespace attnhub
