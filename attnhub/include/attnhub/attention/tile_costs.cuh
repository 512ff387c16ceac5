// What the tiles of a request cost, in closed form: a request may have thousands of tiles.
#pragma once

#include "attnhub/attention/schedule.cuh"
#include "attnhub/common/fastdiv.cuh"
#include "attnhub/common/types.cuh"

namespace attnhub {

// The sequence clamp(first + n * step, 0, top) for n = 0, 1, ...
class Ramp {
 public:
  ATTNHUB_HOST_DEVICE Ramp(i64 first, FastDiv step, i32 top)
      : first_(first),
        step_(step.divisor),
        top_(top),
        rise_(terms_below(-first, step)),
        flat_(terms_below(top - first, step)) {}

  // Of the first `count` terms.
  ATTNHUB_HOST_DEVICE i64 sum(i32 count) const {
    const i64 rise = min(count, rise_), flat = min(count, flat_);
    const i64 rising = flat - rise;
    return rising * (first_ + rise * step_) + step_ * (rising * (rising - 1) / 2) +
           (count - flat) * top_;
  }

 private:
  // How many of 0, step, 2 step, ... lie below a height. NOTE: what passes 2^31 passes every tile
  // of a request, so that the height may be cut there.
  static ATTNHUB_HOST_DEVICE i32 terms_below(i64 height, FastDiv step) {
    constexpr i64 kMax = 0x7fffffff;
    return height <= 0 ? 0 : i32(step.divide(u32(min(height, kMax)) - 1)) + 1;
  }

  i64 first_, step_, top_;
  i32 rise_, flat_;  // from which term on it rises, and from which it stays at the top
};

// A tile of a request, and what the request costs before it.
struct TilePlace {
  i32 head, tile;
  i64 before;
};

// Of a request that the section takes.
class TileCosts {
 public:
  // NOTE: the last query sees all keys to its right, as none are beyond its own position. So the
  // last tile may be taken for a full one.
  ATTNHUB_HOST_DEVICE TileCosts(const Request& request, const Section& section)
      : num_tiles_(section.num_tiles(request)),
        tile_cost_(section.tile_cost),
        ends_(first_end(request, section), section.tiles, request.kv_len),
        begins_(first_begin(request, section), section.tiles, request.kv_len) {}

  // Of one head, before a tile.
  ATTNHUB_HOST_DEVICE i64 before(i32 tile) const {
    return i64(tile) * tile_cost_ + ends_.sum(tile) - begins_.sum(tile);
  }
  ATTNHUB_HOST_DEVICE i64 of_head() const { return before(num_tiles_); }

  // The tile that a cost, counted from the beginning of the request, falls into.
  ATTNHUB_HOST_DEVICE TilePlace find(i64 cost, i32 num_heads) const {
    TilePlace place = {0, 0, 0};
    if (num_heads > 1) {
      const i64 of_each = of_head();
      place.head = i32(u64(cost) / u64(of_each));
      place.before = place.head * of_each;
    }
    const i64 head_begin = place.before;
    i32 end = num_tiles_;
    while (end - place.tile > 1) {
      const i32 middle = place.tile + (end - place.tile) / 2;
      const i64 before_middle = head_begin + before(middle);
      if (before_middle <= cost) {
        place.tile = middle;
        place.before = before_middle;
      } else {
        end = middle;
      }
    }
    return place;
  }

 private:
  // Where the keys of tile 0 end and begin, before they are clamped to the request.
  static ATTNHUB_HOST_DEVICE i64 first_end(const Request& request, const Section& section) {
    if (section.window.right < 0) return request.kv_len;
    return i64(request.kv_len) - request.qo_len + section.tile_tokens + section.window.right;
  }
  static ATTNHUB_HOST_DEVICE i64 first_begin(const Request& request, const Section& section) {
    // Below every tile, so that all terms are 0.
    if (section.window.left < 0) return -(i64(1) << 33);
    return i64(request.kv_len) - request.qo_len - section.window.left;
  }

  i32 num_tiles_, tile_cost_;
  Ramp ends_, begins_;
};

// Of all heads of a request that the section takes.
ATTNHUB_HOST_DEVICE i64 request_cost(const Request& request, const Section& section) {
  if (request.qo_len > section.tile_tokens) {
    return section.num_heads * TileCosts(request, section).of_head();
  }
  // In the only tile the last query sees all keys to its right, and the first one how many more.
  // NOTE: 32 bits hold this, and a batch has thousands of such requests.
  const u32 left = section.window.left, most = left + request.qo_len;
  const u32 keys = i32(left) < 0 ? request.kv_len : min(u32(request.kv_len), most);
  return i64(u64(section.num_heads) * (section.tile_cost + keys));
}

ATTNHUB_HOST_DEVICE TilePlace find_tile(const Request& request, const Section& section, i64 cost) {
  if (section.num_heads == 1 && request.qo_len <= section.tile_tokens) return {0, 0, 0};
  return TileCosts(request, section).find(cost, section.num_heads);
}

}  // namespace attnhub
