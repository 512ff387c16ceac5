// The built-in variables of a thread, and the functions behind the wrappers of attnhub/ptx: what
// kernels and the engine both see.
#pragma once

#include <stddef.h>

namespace attnhub::emulator {

using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;

struct Dim3 {
  unsigned x = 1, y = 1, z = 1;
};

// The built-in variables of the thread that runs now.
struct BuiltIns {
  Dim3 thread, block, block_dim, grid_dim;
};
extern thread_local BuiltIns built_ins;

// memory.cc
u32 dynamic_smem();
void shared_read(u32 address, void* to, size_t num_bytes);
void shared_write(u32 address, const void* from, size_t num_bytes);
void global_read(const void* address, void* to, size_t num_bytes);
void global_write(void* address, const void* from, size_t num_bytes);
int atomic_add(int* address, int value);
int atomic_max(int* address, int value);
int atomic_cas(int* address, int expected, int value);
int ld_acquire(const int* address);
void st_release(int* address, int value);
void cp_async(u32 to, const void* from, int num_bytes, bool is_valid);
void cp_async_commit();
void cp_async_wait(int num_pending);

// warp.cc
void ldmatrix(u32* r, int count, u32 address, bool is_transposed);
void stmatrix(u32 address, const u32* r, int count, bool is_transposed);
void mma_m16n8k16(float* d, const u32* a, u32 b0, u32 b1, bool is_bf16);
void mma_m16n8k32(float* d, const u32* a, u32 b0, u32 b1, bool is_e5m2);
u32 movmatrix(u32 r);
u32 shuffle(int kind, u32 value, int operand, int width, u32 mask);
u32 ballot(bool predicate, u32 mask);
void sync_warp(u32 mask);

// barrier.cc
void sync_threads();
void named_barrier(int id, int num_threads, bool waits);

// mbarrier.cc
void mbarrier_init(u32 mbarrier, u32 num_arrivals);
void mbarrier_arrive(u32 mbarrier, u32 num_bytes);
void mbarrier_arrive_after_cp_async(u32 mbarrier);
void mbarrier_wait(u32 mbarrier, u32 parity);
void fence_mbarrier_init();
void fence_proxy_async();

// barrier.cc and memory.cc
u32 cluster_rank();
void cluster_sync();
u32 cluster_address(u32 address, u32 rank);

// tma.cc; a map is the TensorMapContent of abi.h
void tma_load(u32 to, const void* map, u32 mbarrier, const int* coordinates, int rank);
void tma_load_multicast(u32 to, const void* map, u32 mbarrier, const int* coordinates, int rank,
                        u16 ctas);
void tma_store(const void* map, u32 from, const int* coordinates, int rank);
void bulk_commit();
void bulk_wait(int num_pending);

// wgmma.cc
struct Product {
  int n;
  bool a_is_mn_major, b_is_mn_major, adds, is_bf16;
};
void wgmma(float* d, const u32* a_registers, u64 a, u64 b, const Product& product);
void wgmma_commit();
void wgmma_wait(int num_pending);

// numeric.cc
float ex2(float x);
float lg2(float x);
float rcp(float x);
float sin_approx(float x);
float cos_approx(float x);
float tanh_approx(float x);
float div_full(float a, float b);
float sqrt_approx(float x);
float rsqrt_approx(float x);
float min_nan(float a, float b);
float max_nan(float a, float b);
u32 pack(float low, float high, bool is_bf16);
float half_to_float(u16 bits);
u32 multiply_pair(u32 a, u32 b, bool is_bf16);
u32 byte_permute(u32 a, u32 b, u32 selector);

}  // namespace attnhub::emulator
