// The state of a running grid: fibers, CTAs, what each waits on, and who has seen whose writes.
//
// Every CUDA thread is a fiber of one OS thread. A fiber runs until it blocks (or, with a seed, is
// preempted at a wrapper), so a run repeats exactly, and a deadlock is simply a moment at which
// nobody can run. Order between threads is tracked by vector clocks [Lamport 1978; Mattern 1989]:
// a shared-memory access that no barrier orders after an earlier one is a race, whatever the
// schedule was.
#pragma once

#include <ucontext.h>

#include <csetjmp>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "abi.h"
#include "functions.h"

namespace attnhub::emulator {

constexpr int kWarp = 32;
constexpr u32 kSmemBase = 1024;  // so that address 0 and offsets without a base are caught
constexpr size_t kStackBytes = 256 * 1024;  // of a thread
constexpr int kTagShift = 48;               // of global pointers: see Buffer
constexpr u32 kInFlight = ~0u;  // a clock that nobody has reached: an asynchronous write

using VectorClock = std::vector<u32>;
void join(VectorClock& into, const VectorClock& from);

// Ends the grid with a fault; the text is printf's.
[[noreturn]] __attribute__((format(printf, 2, 3))) void fail(Fault fault, const char* format, ...);

struct AsyncCopy {
  u32 to;
  const void* from;
  int num_bytes;
  bool is_valid;
};

// One warpgroup product, as each of its threads holds it.
struct PendingProduct {
  float* d;
  bool has_registers;
  u32 a_registers[4];
  u64 a, b;
  Product product;
};

struct Cta;

struct Fiber {
  std::jmp_buf context;
  ucontext_t entry;
  Cta* cta = nullptr;
  u32 thread = 0, agent = 0;  // in the CTA; among all that have a clock in the cluster
  bool has_started = false, is_done = false, has_failed = false;
  const void* site = nullptr;  // return address of the latest wrapper call
  const char* waits_on = nullptr;
  u32 wait_operand = 0;
  VectorClock clock;
  std::vector<AsyncCopy> open_copies;
  std::deque<std::vector<AsyncCopy>> copy_groups;
  std::vector<std::function<void()>> open_stores;
  std::deque<std::vector<std::function<void()>>> store_groups;
  std::vector<PendingProduct> open_products;
  std::deque<std::vector<PendingProduct>> product_groups;
  VectorClock fenced;  // what its latest fence_proxy_async covered

  void reset(Cta& new_cta, u32 new_thread);
  u32 lane() const { return thread % kWarp; }
};

// Who accessed a byte of shared memory last, and at which of its clocks.
struct ByteHistory {
  u32 write_clock = 0, read_clock = 0;
  u16 writer = 0, reader = 0;
};

struct Barrier {
  int expected = 0, num_arrived = 0;
  VectorClock gathered;
  std::vector<Fiber*> waiting;
};

// Ends a phase when all arrivals have come and no byte is outstanding.
struct Mbarrier {
  int num_arrivals = 0, num_pending = 0;
  long long num_bytes = 0;
  u32 phase = 0;
  VectorClock gathered, seen;  // by the arrivals of this phase, and of those before
  std::vector<std::pair<Fiber*, u32>> waiting;
};

// A warp instruction that some of its lanes have reached.
struct Collective {
  const char* name = nullptr;
  u32 mask = 0, arrived = 0;
  const void* operands[kWarp] = {};
  Fiber* lanes[kWarp] = {};
};

// CTAs that see each other's shared memory; a launch without clusters has one in each.
struct Cluster {
  std::vector<std::unique_ptr<Cta>> ctas;
  Barrier barrier;

  int num_live() const;
};

struct Cta {
  Dim3 index;
  Cluster* cluster = nullptr;
  u32 rank = 0;
  int num_live = 0;
  std::vector<Fiber*> fibers;
  std::vector<unsigned char> smem;
  std::vector<ByteHistory> history;
  Barrier barriers[16];
  std::vector<std::vector<Collective>> warps;  // pending, one list a warp
  std::map<u32, Mbarrier> mbarriers;           // by shared address
  std::vector<Barrier> warpgroups;             // where wgmma_wait meets
  u32 num_tma_loads = 0;                       // finished: the clock of the copy engine
};

class Engine {
 public:
  Engine(const Config& config, KernelBody body, const void* params);
  ~Engine();
  void run(Report& report);

  void block(const char* waits_on, u32 operand);  // until wake()
  void wake(Fiber* fiber);
  void crash();                                                // from the handler of SIGSEGV
  void start_async(Cta* cta, std::function<void()> complete);  // done as late as possible
  void step(const void* site);  // called by every wrapper: preempts by chance, watches the time

  const Config& config;
  Fiber* current = nullptr;
  Fault fault = Fault::kNone;
  std::string fault_text;

 private:
  static void enter();
  void switch_to_scheduler();
  void resume(Fiber* fiber);
  Fiber* pick();
  bool start_cluster();
  void start_cta(Cta& cta);
  bool finish_async();
  Fiber* make_fiber();
  void retire(Fiber* fiber);
  void check_time();
  std::string dump() const;

  KernelBody body_;
  const void* params_;
  std::jmp_buf scheduler_;
  std::deque<Fiber*> runnable_;
  std::vector<std::unique_ptr<Cluster>> clusters_;
  std::vector<std::unique_ptr<Fiber>> fibers_;
  std::vector<Fiber*> free_fibers_;
  std::vector<std::pair<void*, size_t>> stacks_;
  std::deque<std::pair<Cta*, std::function<void()>>> async_;
  std::vector<u32> order_;  // of starting the clusters
  size_t num_started_ = 0;
  std::mt19937_64 random_;
  u64 num_steps_ = 0, num_switches_ = 0, steps_since_switch_ = 0, num_picks_ = 0;
  double deadline_ = 0;
};

extern thread_local Engine* engine;

// Who a clock belongs to: a thread, the copy engine of a CTA, or the tensor core of a warpgroup.
inline u32 num_fibers() { return engine->config.cluster * engine->config.num_threads; }
inline u32 tma_agent(u32 rank) { return num_fibers() + rank; }
inline u32 wgmma_agent(u32 rank, u32 warpgroup) {
  const Config& config = engine->config;
  return num_fibers() + config.cluster + rank * (config.num_threads / 128) + warpgroup;
}
inline u32 num_agents() { return wgmma_agent(engine->config.cluster, 0); }

inline Fiber& self() { return *engine->current; }
inline Cta& cta() { return *engine->current->cta; }

// Marks the call site and gives the scheduler a chance. Every wrapper begins with it.
#define ATTNHUB_EMULATOR_STEP() ::attnhub::emulator::engine->step(__builtin_return_address(0))

// dump.cc: names for messages.
std::string site_text(const void* site);
std::string where(const Cta& cta);
std::string agent_name(u32 agent);

// barrier.cc
void leave_barriers(Cta& cta);  // after a thread has exited
void release(Fiber& fiber, VectorClock& into);

// mbarrier.cc
Mbarrier& find_mbarrier(u32 address, const char* verb);
void end_phase_if_complete(Mbarrier& mbarrier);
void finish_cp_async();  // memory.cc: all copies of this thread, committed or not

// memory.cc: the checks of an access, without moving data.
void check_shared(u32 address, size_t num_bytes, const char* verb);
void note_read(u32 address, size_t num_bytes);
void note_async_read(u32 address, size_t num_bytes, u32 agent, u32 clock);
void note_async_write(u32 address, size_t num_bytes, u32 agent);
void note_write(u32 address, size_t num_bytes, const void* value = nullptr);
unsigned char* smem_at(u32 address);
ByteHistory& history_at(u32 address);
Cta& cta_at(u32 address);  // whose shared memory an address is in: see cluster_address()
u32 local_address(u32 address);
inline u32 offset_at(u32 address) { return local_address(address) - kSmemBase; }

}  // namespace attnhub::emulator
