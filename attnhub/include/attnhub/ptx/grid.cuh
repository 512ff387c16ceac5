// Programmatic dependent launch (sm_90): a kernel may start while the one before it in the stream
// ends. Without that launch attribute, and on older GPUs, both do nothing.
#pragma once

#include "attnhub/common/types.cuh"

namespace attnhub::ptx {

// Waits until the kernels before this one have ended and what they wrote can be read. Nothing of
// theirs may be read earlier, and nothing that they read may be written.
ATTNHUB_DEVICE void grid_wait() {
#if !defined(ATTNHUB_EMULATOR) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Lets the next kernel start once all CTAs have called this or ended.
ATTNHUB_DEVICE void grid_launch_dependents() {
#if !defined(ATTNHUB_EMULATOR) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

}  // namespace attnhub::ptx
