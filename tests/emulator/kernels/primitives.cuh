// One small kernel for each group of wrappers, and one for each way to use them wrongly.
#pragma once

#include "attnhub/ptx/atomic.cuh"
#include "attnhub/ptx/barrier.cuh"
#include "attnhub/ptx/convert.cuh"
#include "attnhub/ptx/cp_async.cuh"
#include "attnhub/ptx/fence.cuh"
#include "attnhub/ptx/ldmatrix.cuh"
#include "attnhub/ptx/math.cuh"
#include "attnhub/ptx/mbarrier.cuh"
#include "attnhub/ptx/memory.cuh"
#include "attnhub/ptx/mma_sm80.cuh"
#include "attnhub/ptx/shuffle.cuh"
#include "attnhub/ptx/thread.cuh"

namespace primitives {

using namespace attnhub;

struct Params {
  const float* x;
  float* y;
  i32* words;
  int n;
};

// y[i, lane]: the i-th way to move x[lane] through a warp.
ATTNHUB_DEVICE void shuffles(const Params& p) {
  const int lane = ptx::lane_idx();
  const float x = ptx::ld_global(p.x + lane);
  const float moved[] = {
      ptx::shuffle(x, 5),    ptx::shuffle(x, 1, 8),       ptx::shuffle_xor(x, 3),
      ptx::shuffle_up(x, 2), ptx::shuffle_down(x, 2, 16), float(ptx::shuffle(double(x), 31)),
  };
  for (int i = 0; i < 6; ++i) ptx::st_global(p.y + i * 32 + lane, moved[i]);
  if (lane < 16) {  // half a warp, with its own mask
    const float half = ptx::shuffle_xor(x, 1, 32, 0x0000ffffu);
    ptx::st_global(p.y + 6 * 32 + lane, half);
  }
  ptx::st_global(p.words + lane, i32(ptx::ballot(x > 0.0f)));
}

// words[0, lane]: a matrix of 0 .. 63, transposed in registers. words[1, lane]: whether any x is
// above 1; words[2, lane]: the same among the upper 16 lanes alone, asked by these.
ATTNHUB_DEVICE void votes(const Params& p) {
  const int lane = ptx::lane_idx();
  const bool is_above = ptx::ld_global(p.x + lane) > 1.0f;
  ptx::st_global(p.words + lane, i32(ptx::movmatrix(u32(2 * lane) | u32(2 * lane + 1) << 16)));
  ptx::st_global(p.words + 32 + lane, i32(ptx::any(is_above)));
  if (lane >= 16) ptx::st_global(p.words + 64 + lane, i32(ptx::any(is_above, 0xffff0000u)));
}

// y[i, k]: function i of x[k].
ATTNHUB_DEVICE void functions(const Params& p) {
  for (int k = threadIdx.x; k < p.n; k += blockDim.x) {
    const float x = ptx::ld_global_once(p.x + k);
    ptx::st_global(p.y + k, ptx::ex2(x));
    ptx::st_global(p.y + p.n + k, ptx::lg2(x));
    ptx::st_global(p.y + 2 * p.n + k, ptx::rcp(x));
    ptx::st_global(p.y + 3 * p.n + k, ptx::tanh_approx(x));
    ptx::st_global(p.y + 4 * p.n + k, ptx::sin_approx(x));
    ptx::st_global(p.y + 5 * p.n + k, ptx::cos_approx(x));
    ptx::st_global(p.y + 6 * p.n + k, ptx::to_float(ptx::from_float<Half>(x)));
    ptx::st_global(p.y + 7 * p.n + k, ptx::to_float(ptx::from_float<Bf16>(x)));
    const u32 halves = ptx::pack<Half>(x, -x), bf16s = ptx::pack<Bf16>(x, -x);
    ptx::st_global(p.y + 8 * p.n + k, ptx::unpack<Half>(halves)[1]);
    ptx::st_global(p.y + 9 * p.n + k, ptx::unpack<Bf16>(bf16s)[1]);
    ptx::st_global(p.words + k, i32(halves));
  }
}

// By every width of load, store and cp.async: y[0] and y[1] = x reversed, through shared memory,
// the first with zeros for each eighth element; y[2] and y[3] = x.
template <class T>
ATTNHUB_DEVICE void widths(const Params& p) {
  const bool is_valid = threadIdx.x % 8 != 7;
  const u32 mine = ptx::dynamic_smem() + threadIdx.x * sizeof(T);
  const T* x = reinterpret_cast<const T*>(p.x) + threadIdx.x;
  T* y = reinterpret_cast<T*>(p.y) + threadIdx.x;
  if constexpr (sizeof(T) >= 4) {
    ptx::cp_async<sizeof(T)>(mine, x, is_valid);
    ptx::cp_async_commit();
    ptx::cp_async_wait<0>();
  } else {
    ptx::st_shared(mine, is_valid ? ptx::ld_global(x) : T{});
  }
  ptx::sync_threads();
  const u32 other = ptx::dynamic_smem() + (blockDim.x - 1 - threadIdx.x) * sizeof(T);
  ptx::st_global(y, ptx::ld_shared<T>(other));
  ptx::sync_threads();
  ptx::st_shared(mine, ptx::ld_global(x));
  ptx::sync_threads();
  ptx::st_global(y + blockDim.x, ptx::ld_shared<T>(other));
  ptx::st_global(y + 2 * blockDim.x, ptx::ld_global_once(x));
  ptx::st_global(y + 3 * blockDim.x, ptx::ld_global_l2(x));
}

// words[m, lane]: what ldmatrix gives of kCount matrices of 8 rows of 8 numbers of 16 bits.
template <int kCount, bool kTransposed>
ATTNHUB_DEVICE void matrix(const Params& p) {
  const int lane = ptx::lane_idx();
  const u32 smem = ptx::dynamic_smem();
  for (int i = lane; i < 32 * kCount; i += 32) {
    ptx::st_shared(smem + i * 4, u32(2 * i) | u32(2 * i + 1) << 16);
  }
  ptx::sync_warp();
  u32 r[kCount];
  ptx::ldmatrix<kCount, kTransposed>(r, smem + lane % (8 * kCount) * 16);
  for (int m = 0; m < kCount; ++m) ptx::st_global(p.words + m * 32 + lane, i32(r[m]));
}

// words: the matrices that stmatrix makes of what ldmatrix gave, one of the two transposing.
template <int kCount, bool kTransposed>
ATTNHUB_DEVICE void transpose(const Params& p) {
  const int lane = ptx::lane_idx();
  const u32 smem = ptx::dynamic_smem();
  for (int i = lane; i < 32 * kCount; i += 32) {
    ptx::st_shared(smem + i * 4, u32(2 * i) | u32(2 * i + 1) << 16);
  }
  ptx::sync_warp();
  u32 r[kCount];
  const u32 row = smem + lane % (8 * kCount) * 16;
  ptx::ldmatrix<kCount, !kTransposed>(r, row);
  ptx::sync_warp();
  ptx::stmatrix<kCount, kTransposed>(row, r);
  ptx::sync_warp();
  for (int i = lane; i < 32 * kCount; i += 32) {
    ptx::st_global(p.words + i, ptx::ld_shared<i32>(smem + i * 4));
  }
}

// Warp 0 sends n numbers to warp 1 through one slot, by two named barriers.
template <bool kIsRight>
ATTNHUB_DEVICE void hand_over(const Params& p) {
  constexpr int kFull = 1, kEmpty = 2;
  const u32 slot = ptx::dynamic_smem() + ptx::lane_idx() * 4;
  if (ptx::uniform_warp_idx() == 0) {
    for (int i = 0; i < p.n; ++i) {
      if (i > 0 || !kIsRight) ptx::named_barrier_sync(kEmpty, 64);  // nobody fills the first
      ptx::st_shared(slot, ptx::ld_global(p.x + i * 32 + ptx::lane_idx()));
      ptx::named_barrier_arrive(kFull, 64);
    }
  } else {
    for (int i = 0; i < p.n; ++i) {
      ptx::named_barrier_sync(kFull, 64);
      ptx::st_global(p.y + i * 32 + ptx::lane_idx(), ptx::ld_shared<float>(slot));
      if (i + 1 < p.n) ptx::named_barrier_arrive(kEmpty, 64);
    }
  }
}

// y = x reversed: the copies of all threads arrive at an mbarrier, and no thread waits for its own.
ATTNHUB_DEVICE void copies_arrive(const Params& p) {
  const u32 mbarrier = ptx::dynamic_smem(), copies = mbarrier + 16;
  if (threadIdx.x == 0) {
    ptx::mbarrier_init(mbarrier, blockDim.x);
    ptx::fence_mbarrier_init();
  }
  ptx::sync_threads();
  ptx::cp_async<4>(copies + threadIdx.x * 4, p.x + threadIdx.x);
  ptx::mbarrier_arrive_after_cp_async(mbarrier);
  ptx::mbarrier_wait(mbarrier, 0);
  const u32 other = copies + (blockDim.x - 1 - threadIdx.x) * 4;
  ptx::st_global(p.y + threadIdx.x, ptx::ld_shared<float>(other));
}

// The last CTA to come adds up what the others wrote.
ATTNHUB_DEVICE void last_one_sums(const Params& p) {
  if (threadIdx.x != 0) return;
  ptx::st_global(p.y + blockIdx.x, ptx::ld_global(p.x + blockIdx.x));
  if (ptx::atomic_add_acq_rel(p.words, 1) != int(gridDim.x) - 1) return;
  float sum = 0.0f;
  for (int i = 0; i < int(gridDim.x); ++i) sum += ptx::ld_global_l2(p.y + i);
  ptx::st_global(p.y + gridDim.x, sum);
}

// Every CTA waits for the one before it: words[0] counts, the others are changed in this order.
ATTNHUB_DEVICE void relay(const Params& p) {
  if (threadIdx.x != 0) return;
  while (ptx::ld_acquire(p.words) != int(blockIdx.x)) {
  }
  ptx::atomic_max(p.words + 1, int(blockIdx.x));
  ptx::atomic_cas(p.words + 2, 0, int(blockIdx.x));
  ptx::atomic_add(p.words + 3, int(blockIdx.x));
  ptx::st_release(p.words, int(blockIdx.x) + 1);
}

enum class Fault {
  kBarrierInBranch,
  kWarpSplit,
  kMisaligned,
  kWritesConst,
  kReadsPastSmem,
  kReadsBeforeSmem,
  kReadsPastTensor,
  kWritesPastTensor,
  kReadsNull,
  kBarrierCount,
  kPollsForever,
  kNoWarpSync,
  kReadsTooSoon,
  kPlainPointer,
  kOverflowsStack,
};

template <Fault kFault>
ATTNHUB_DEVICE void faulty(const Params& p) {
  const int t = threadIdx.x;
  const u32 smem = ptx::dynamic_smem();
  if constexpr (kFault == Fault::kBarrierInBranch) {
    if (t < 32) {
      ptx::named_barrier_sync(1, 64);
    } else {
      ptx::named_barrier_sync(2, 64);
    }
  } else if constexpr (kFault == Fault::kWarpSplit) {
    if (t == 3) {
      ptx::sync_warp();
    } else {
      ptx::ballot(true);
    }
  } else if constexpr (kFault == Fault::kMisaligned) {
    ptx::ld_global(reinterpret_cast<const Vec<float, 4>*>(p.x + 1));
  } else if constexpr (kFault == Fault::kWritesConst) {
    ptx::st_global(const_cast<float*>(p.x), 0.0f);
  } else if constexpr (kFault == Fault::kReadsPastSmem) {
    ptx::ld_shared<float>(smem + 256);
  } else if constexpr (kFault == Fault::kReadsBeforeSmem) {
    ptx::ld_shared<float>(0);
  } else if constexpr (kFault == Fault::kReadsPastTensor) {
    ptx::ld_global(p.x + p.n);
  } else if constexpr (kFault == Fault::kWritesPastTensor) {
    ptx::st_global(p.y - 1, 0.0f);
  } else if constexpr (kFault == Fault::kReadsNull) {
    ptx::ld_acquire(p.words);
  } else if constexpr (kFault == Fault::kBarrierCount) {
    ptx::named_barrier_arrive(1, t < 32 ? 64 : 32);
  } else if constexpr (kFault == Fault::kPollsForever) {
    while (ptx::ld_global(p.x) == 0.0f) {
    }
  } else if constexpr (kFault == Fault::kNoWarpSync) {
    ptx::st_shared(smem + t * 4, t);
    ptx::ld_shared<int>(smem + (t ^ 1) * 4);
  } else if constexpr (kFault == Fault::kReadsTooSoon) {
    ptx::cp_async<4>(smem + t * 4, p.x + t);
    ptx::cp_async_wait<0>();  // the copy was never committed to a group
    ptx::ld_shared<float>(smem + t * 4);
  } else if constexpr (kFault == Fault::kPlainPointer) {
    ptx::sync_threads();
    p.y[t] = 1.0f;
  } else if constexpr (kFault == Fault::kOverflowsStack) {
    volatile int large[200000];
    ptx::sync_threads();
    for (int i = 0; i < 200000; ++i) large[i] = i;
  }
}

}  // namespace primitives
