// What Python and the engine pass each other. kernel.py mirrors these structs in ctypes.
#pragma once

#include <cstdint>

namespace attnhub::emulator {

enum class Fault : int32_t { kNone, kDeadlock, kTimeout, kOutOfBounds, kRace, kMisuse };

// A range of memory that the kernel may touch. A pointer made from buffer i carries i + 1 in its
// top bits, so that an access past one tensor is not taken for one of the next.
struct Buffer {
  const char* name;
  uint64_t begin, end;
  int32_t is_writable;
};

struct Config {
  uint32_t grid[3];
  uint32_t num_threads;
  uint32_t cluster;  // CTAs, neighbours along x
  uint32_t smem_bytes;
  uint32_t num_resident;  // CTAs that run at the same time
  uint64_t seed;          // 0: round robin without preemption
  double timeout_s;
  int32_t finds_races;
  int32_t num_buffers;
  const Buffer* buffers;
};

struct Report {
  Fault fault;
  uint64_t num_switches;
  char text[16384];
};

// What a TensorMap holds here; dimension 0 is the innermost. params.py fills it.
struct TensorMapContent {
  uint64_t base;
  uint64_t sizes[5];
  uint64_t stride_bytes[5];
  uint32_t box[5];
  uint32_t rank, element_bytes, swizzle_bytes;
};
static_assert(sizeof(TensorMapContent) <= 128, "it takes the place of CUDA's tensor map");

using KernelBody = void (*)(const void* params);

}  // namespace attnhub::emulator

// Runs a grid and fills the report. One grid at a time in each OS thread.
extern "C" void attnhub_emulator_run(attnhub::emulator::KernelBody body, const void* params,
                                     const attnhub::emulator::Config* config,
                                     attnhub::emulator::Report* report);
