// The scheduler's arithmetic and its reader as plain functions, for tests of many batches at once:
// the plan kernel without threads, and the pieces that each worker would get.
#include <algorithm>

#include "attnhub/attention/cuts.cuh"
#include "attnhub/attention/schedule.cuh"

using namespace attnhub;

namespace attnhub::emulator {

float rcp(float x) { return 1 / x; }

void global_read(const void* address, void* to, size_t num_bytes) {
  memcpy(to, address, num_bytes);
}

}  // namespace attnhub::emulator

namespace {

struct HostBatch {
  const Request* requests;
  const i64* costs_before;  // [size]
  const i32* first_slots;
  const i32* next_requests;
  i32 size;
  i64 total;

  i64 cost_before(i32 r) const { return costs_before[r]; }
  i32 find(i64 cost) const {
    return i32(std::upper_bound(costs_before, costs_before + size, cost) - costs_before) - 1;
  }
  Request request(i32 r) const { return requests[r]; }
  i32 first_slot(i32 r) const { return first_slots[r]; }
  i32 next_request(i32 r) const { return next_requests[r]; }
};

}  // namespace

extern "C" {

long long tile_costs_before(const Section* section, const Request* request, int tile) {
  return TileCosts(*request, *section).before(tile);
}

void plan(const Section* section, const Request* requests, int size, i64* costs_before,
          i32* first_slots, i32* next_requests, WorkerRange* ranges) {
  i64 cost = 0, slots = 0;
  for (int r = 0; r < size; ++r) {
    costs_before[r] = cost;
    first_slots[r] = -1;
    if (!section->takes(requests[r])) continue;
    cost += request_cost(requests[r], *section);
    if (!section->is_fixed) continue;
    const i64 of_each = section->tile_slots(requests[r]);
    if (of_each == 1) continue;
    const i64 own = i64(section->num_heads) * section->num_tiles(requests[r]) * of_each;
    if (slots + own <= section->num_slots) first_slots[r] = i32(slots);
    slots += own;
  }
  for (int r = size - 1, next = size; r >= 0; --r) {
    next_requests[r] = next;
    if (section->takes(requests[r])) next = r;
  }
  const HostBatch batch = {requests, costs_before, first_slots, next_requests, size, cost};
  const Cutter<HostBatch> cutter(batch, *section);
  for (int w = 0; w <= section->num_workers; ++w) {
    const PlacedCut placed = cutter.cut(w);
    if (w < section->num_workers) {
      ranges[w].begin = placed.cut;
      ranges[w].first = placed.request;
      ranges[w].first_slot = placed.first_slot;
      ranges[w].num_pieces = placed.num_pieces;
      ranges[w].next_request = placed.next_request;
    }
    if (w > 0) {
      ranges[w - 1].end = placed.cut;
      ranges[w - 1].end_pieces = placed.num_pieces;
    }
  }
}

// Pieces of one worker, at most `room` of them; returns how many there are.
int read_pieces(const Schedule* schedule, const Section* section, int worker, Piece* pieces,
                int room) {
  WorkRange range(*schedule, *section, worker);
  int count = 0;
  for (Piece piece; count <= room && range.next(piece); ++count) {
    if (count < room) pieces[count] = piece;
  }
  return count;
}

}  // extern "C"
