// setmaxnreg (sm_90a): warpgroups give registers up, or take up what others gave. Every warp of the
// warpgroup calls it. The kernel has __launch_bounds__ with one block, and counts are multiples
// of 8.
#pragma once

#include "attnhub/common/types.cuh"

namespace attnhub::ptx {

template <int kRegisters>
ATTNHUB_DEVICE void registers_decrease() {
  static_assert(kRegisters % 8 == 0 && kRegisters >= 24 && kRegisters <= 256, "24, 32, ... 256");
#ifndef ATTNHUB_EMULATOR
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
#endif
}

template <int kRegisters>
ATTNHUB_DEVICE void registers_increase() {
  static_assert(kRegisters % 8 == 0 && kRegisters >= 24 && kRegisters <= 256, "24, 32, ... 256");
#ifndef ATTNHUB_EMULATOR
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
#endif
}

}  // namespace attnhub::ptx
