// What the threads of a CTA find out about all those before or after them, in two halves: before
// and after one barrier, which several of these may share.
#pragma once

#include "attnhub/common/types.cuh"
#include "attnhub/ptx/memory.cuh"
#include "attnhub/ptx/shuffle.cuh"
#include "attnhub/ptx/thread.cuh"

namespace attnhub {

// The sum of the values of this lane and those below.
ATTNHUB_DEVICE i64 inclusive_scan(i64 sum) {
#pragma unroll
  for (int delta = 1; delta < ptx::kWarpSize; delta *= 2) {
    const i64 below = ptx::shuffle_up(sum, delta);
    if (ptx::lane_idx() >= delta) sum += below;
  }
  return sum;
}

// The value of the first lane from `begin` on that has one; -1 stands for none.
ATTNHUB_DEVICE i32 first_from(int begin, i32 value) {
  const u32 all = ptx::ballot(value >= 0);
  const u32 lanes = begin < ptx::kWarpSize ? all >> begin << begin : 0;
  const i32 found = ptx::shuffle(value, lanes != 0 ? ptx::lowest_lane(lanes) : 0);
  return lanes != 0 ? found : -1;
}

// The sum over the threads before this one.
class RunningSum {
 public:
  RunningSum() = default;
  // `warps`: the address of an i64 for each warp in shared memory.
  ATTNHUB_DEVICE RunningSum(i64 own, u32 warps) : warps_(warps) {
    const i64 sum = inclusive_scan(own);
    in_warp_ = sum - own;
    if (ptx::lane_idx() == ptx::kWarpSize - 1) ptx::st_shared(at(ptx::warp_idx()), sum);
  }
  // NOTE: every warp sums over the warps, which is sooner done than a second barrier.
  ATTNHUB_DEVICE i64 before(i64& total) const {
    const int lane = ptx::lane_idx();
    const i64 own = lane < ptx::num_warps() ? ptx::ld_shared<i64>(at(lane)) : 0;
    const i64 sum = inclusive_scan(own);
    total = ptx::shuffle(sum, ptx::kWarpSize - 1);
    return ptx::shuffle(sum - own, ptx::warp_idx()) + in_warp_;
  }

 private:
  ATTNHUB_DEVICE u32 at(int warp) const { return warps_ + warp * u32(sizeof(i64)); }

  u32 warps_;
  i64 in_warp_;
};

// The value of the first thread after this one that has one; -1 stands for none.
class NextValue {
 public:
  // `warps`: the address of an i32 for each warp in shared memory.
  ATTNHUB_DEVICE NextValue(i32 own, u32 warps)
      : warps_(warps), in_warp_(first_from(ptx::lane_idx() + 1, own)) {
    const i32 of_warp = first_from(0, own);
    if (ptx::lane_idx() == 0) ptx::st_shared(at(ptx::warp_idx()), of_warp);
  }
  ATTNHUB_DEVICE i32 after() const {
    const int lane = ptx::lane_idx();
    const i32 own = lane < ptx::num_warps() ? ptx::ld_shared<i32>(at(lane)) : -1;
    const i32 beyond = first_from(ptx::warp_idx() + 1, own);
    return in_warp_ >= 0 ? in_warp_ : beyond;
  }

 private:
  ATTNHUB_DEVICE u32 at(int warp) const { return warps_ + warp * u32(sizeof(i32)); }

  u32 warps_;
  i32 in_warp_;
};

}  // namespace attnhub
