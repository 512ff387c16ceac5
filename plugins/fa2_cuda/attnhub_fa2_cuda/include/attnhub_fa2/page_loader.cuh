// Copies blocks of K and V from wherever their rows lie into the ring.
#pragma once

#include "attnhub/attention/kv_view.cuh"
#include "attnhub/ptx/shuffle.cuh"
#include "attnhub/ptx/thread.cuh"
#include "attnhub_fa2/tile_shape.cuh"

namespace attnhub::fa2 {

template <class Shape>
struct PageLoader {
  using Kv = typename Shape::Kv;
  using TileK = typename Shape::TileK;
  using TileV = typename Shape::TileV;
  static constexpr int kCopies = Shape::kBlockN / Shape::kRowsPerCopy;  // rows of a lane, in a block
  static constexpr int kWarpRows = 32 / TileK::kLanes;                  // of one copy of a warp
  static_assert(Shape::kRowsPerCopy % 8 == 0, "the swizzle repeats every 8 rows");
  static_assert(kCopies * kWarpRows <= 32, "each lane looks up at most one of its warp's rows");

  const KvTensor<Kv>& k;
  const KvTensor<Kv>& v;
  const KvTable& table;
  const Request& request;
  i32 head;
  i32 end;  // keys from here on are not this piece's
  KvSlot ahead;  // where this lane's row of the block to come lies

  // The row of a block that copy i of this warp moves in its part `part`.
  static ATTNHUB_DEVICE i32 block_row(int i, int part) {
    return i * Shape::kRowsPerCopy + ptx::warp_idx() * kWarpRows + part;
  }

  // NOTE: a block ahead, so that the table's latency is hidden behind the block in between.
  ATTNHUB_DEVICE void look_up(i32 first_key) {
    const int lane = ptx::lane_idx();
    const i32 key = first_key + block_row(lane / kWarpRows, lane % kWarpRows);
    ahead = {0, 0};
    if (lane < kCopies * kWarpRows && key < end) ahead = table.find(request, key);
  }

  // Rows past the end become zeros: what lies there may be NaN, and 0 times NaN is NaN.
  ATTNHUB_DEVICE void load(u32 to_k, u32 to_v, i32 first_key) const {
    const int part = ptx::lane_idx() / TileK::kLanes, chunk = ptx::lane_idx() % TileK::kLanes;
    // Of K and of V: rows of a panel have the same width.
    const u32 first = TileK::offset(block_row(0, part), chunk);
    // NOTE: one lane finds the address of a row for the 8 that copy it. For each copy it would cost
    // more instructions than all else that the copy needs.
    const Kv *row_k = k.row(ahead, head), *row_v = v.row(ahead, head);
#pragma unroll
    for (int i = 0; i < kCopies; ++i) {
      const bool is_valid = first_key + block_row(i, part) < end;
      const Kv* from_k = ptx::shuffle(row_k, i * kWarpRows + part);
      const Kv* from_v = ptx::shuffle(row_v, i * kWarpRows + part);
      const u32 to = TileK::step(first, i * Shape::kRowsPerCopy, 0);
      TileK::copy_row(to_k + to, from_k, is_valid);
      TileV::copy_row(to_v + to, from_v, is_valid);
    }
  }
};

}  // namespace attnhub::fa2
