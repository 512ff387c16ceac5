// The packed query rows of a tile: row r is query r / group of the tile, and head r % group of a
// group of query heads that share a KV head.
#pragma once

#include "attnhub/attention/mask.cuh"
#include "attnhub/attention/schedule.cuh"
#include "attnhub_fa2/params.cuh"

namespace attnhub::fa2 {

struct QueryRow {
  i32 qo_idx;  // from the start of the request
  i32 head;
  bool is_valid;  // some rows of a tile are no query's
};

// What the mainloop asks of a row. NOTE: kept in shared memory, since registers are what the products
// of a block leave none of.
struct alignas(16) TileRow {
  float scale;  // of its scores, in natural units
  QueryRow query;
};

ATTNHUB_DEVICE QueryRow query_row(const Share& share, const Piece& piece, i32 group_idx, i32 row) {
  const i32 token = share.group.divide(row), group = share.group.divisor;
  const i32 qo_idx = piece.tile * share.section.tile_tokens + token;
  return {qo_idx, group_idx * group + row - token * group,
          token < share.section.tile_tokens && qo_idx < piece.request.qo_len};
}

}  // namespace attnhub::fa2
