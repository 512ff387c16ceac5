// Walks the range of each worker. Every thread does, and all must get the same.
#pragma once

#include "attnhub/attention/schedule.cuh"

namespace pieces {

using namespace attnhub;

struct Params {
  Schedule schedule;
  Section section;
  Piece* pieces;  // [num_workers, room]
  i32* counts;    // [num_workers]
  i32 room;
};

ATTNHUB_DEVICE void walk(const Params& p) {
  constexpr int kParts = sizeof(Piece) / 16;
  WorkRange range(p.schedule, p.section, blockIdx.x);
  i32 count = 0;
  for (Piece piece; range.next(piece); ++count) {
    // Thread t writes down what it found of part t.
    Vec<i32, 4> parts[kParts];
    memcpy(parts, &piece, sizeof(Piece));
    auto* to = reinterpret_cast<Vec<i32, 4>*>(p.pieces + i64(blockIdx.x) * p.room + count);
    for (int i = 0; i < kParts; ++i) {
      if (i32(threadIdx.x) == i && count < p.room) ptx::st_global(to + i, parts[i]);
    }
  }
  if (threadIdx.x == 0) ptx::st_global(p.counts + blockIdx.x, count);
}

}  // namespace pieces
