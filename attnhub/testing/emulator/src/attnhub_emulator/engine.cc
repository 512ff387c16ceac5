// Fibers, their scheduler, and the end of a grid: normal, by a fault or by deadlock.
#include "engine.h"

#include <signal.h>
#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <numeric>
#include <string>

namespace attnhub::emulator {

thread_local Engine* engine = nullptr;
thread_local BuiltIns built_ins;

namespace {

constexpr size_t kGuardBytes = 16 * 1024;  // a thread that overflows its stack crashes here
constexpr u64 kStepsPerSlice = 2000;       // so that a loop that polls lets others run
constexpr u64 kStepsPerClockRead = 4096;

struct Unwind {};  // leaves the kernel's code after a fault

double now_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// NOTE: its own function, so that no local variable lives across _setjmp.
__attribute__((noinline)) void swap(std::jmp_buf& from, std::jmp_buf& to) {
  if (_setjmp(from) == 0) _longjmp(to, 1);
}

}  // namespace

void join(VectorClock& into, const VectorClock& from) {
  if (into.size() < from.size()) into.resize(from.size(), 0);
  for (size_t i = 0; i < from.size(); ++i) into[i] = std::max(into[i], from[i]);
}

void fail(Fault fault, const char* format, ...) {
  char text[1024];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof(text), format, arguments);
  va_end(arguments);
  const Fiber& fiber = self();
  engine->fault = fault;
  engine->fault_text = "thread " + std::to_string(fiber.thread) + " of " + where(*fiber.cta) + " " +
                       text + ", " + site_text(fiber.site);
  throw Unwind{};
}

// A fiber's stack and context outlive the thread that it last ran.
void Fiber::reset(Cta& new_cta, u32 new_thread) {
  cta = &new_cta;
  thread = new_thread;
  agent = cta->rank * engine->config.num_threads + thread;
  has_started = is_done = has_failed = false;
  site = nullptr;
  waits_on = nullptr;
  open_copies.clear();
  copy_groups.clear();
  open_stores.clear();
  store_groups.clear();
  open_products.clear();
  product_groups.clear();
  fenced.assign(num_agents(), 0);
  clock.assign(num_agents(), 0);
  clock[agent] = 1;
}

Engine::Engine(const Config& c, KernelBody body, const void* params)
    : config(c), body_(body), params_(params), random_(c.seed) {
  order_.resize(size_t(c.grid[0]) * c.grid[1] * c.grid[2] / c.cluster);
  std::iota(order_.begin(), order_.end(), 0u);
  deadline_ = now_s() + c.timeout_s;
}

Engine::~Engine() {
  for (auto& [stack, num_bytes] : stacks_) munmap(stack, num_bytes);
}

void Engine::enter() {
  Fiber& fiber = self();
  try {
    engine->body_(engine->params_);
  } catch (const Unwind&) {
    fiber.has_failed = true;
  }
  const bool has_stores = !fiber.store_groups.empty() || !fiber.open_stores.empty();
  if (has_stores && !fiber.has_failed) {
    try {
      fail(Fault::kMisuse, "ends without bulk_wait or bulk_wait_read for its stores");
    } catch (const Unwind&) {
    }
  }
  fiber.is_done = true;
  _longjmp(engine->scheduler_, 1);
}

void Engine::switch_to_scheduler() {
  ++num_switches_;
  swap(current->context, scheduler_);
}

void Engine::resume(Fiber* fiber) {
  current = fiber;
  steps_since_switch_ = 0;
  built_ins.thread = {fiber->thread, 0, 0};
  built_ins.block = fiber->cta->index;
  built_ins.block_dim = {config.num_threads, 1, 1};
  built_ins.grid_dim = {config.grid[0], config.grid[1], config.grid[2]};
  if (fiber->has_started) {
    swap(scheduler_, fiber->context);
  } else {
    fiber->has_started = true;
    if (_setjmp(scheduler_) == 0) setcontext(&fiber->entry);
  }
}

// Copies finish when nobody can run without them, or with a seed at any time. Now and then they do
// anyway, for the sake of kernels that poll.
Fiber* Engine::pick() {
  constexpr u64 kPicksPerCopy = 1 << 16;
  const bool is_due = config.seed != 0 ? random_() % 64 == 0 : ++num_picks_ % kPicksPerCopy == 0;
  if (is_due) finish_async();
  while (runnable_.empty() && finish_async()) {
  }
  if (runnable_.empty()) return nullptr;
  if (config.seed != 0) std::swap(runnable_.front(), runnable_[random_() % runnable_.size()]);
  Fiber* fiber = runnable_.front();
  runnable_.pop_front();
  return fiber;
}

Fiber* Engine::make_fiber() {
  const size_t num_bytes = kStackBytes + kGuardBytes;
  void* stack = mmap(nullptr, num_bytes, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (stack == MAP_FAILED) throw std::bad_alloc();
  mprotect(stack, kGuardBytes, PROT_NONE);
  stacks_.emplace_back(stack, num_bytes);
  fibers_.push_back(std::make_unique<Fiber>());
  ucontext_t& entry = fibers_.back()->entry;
  getcontext(&entry);
  entry.uc_stack.ss_sp = static_cast<char*>(stack) + kGuardBytes;
  entry.uc_stack.ss_size = kStackBytes;
  return fibers_.back().get();
}

void Engine::start_async(Cta* cta, std::function<void()> complete) {
  async_.emplace_back(cta, std::move(complete));
}

bool Engine::finish_async() {
  if (async_.empty()) return false;
  if (config.seed != 0) std::swap(async_.front(), async_[random_() % async_.size()]);
  const auto complete = std::move(async_.front().second);
  async_.pop_front();
  complete();
  return true;
}

bool Engine::start_cluster() {
  if (num_started_ == order_.size()) return false;
  const u32 first = order_[num_started_++] * config.cluster;
  auto cluster = std::make_unique<Cluster>();
  for (u32 rank = 0; rank < config.cluster; ++rank) {
    const u32 linear = first + rank;
    cluster->ctas.push_back(std::make_unique<Cta>());
    Cta& cta = *cluster->ctas.back();
    cta.cluster = cluster.get();
    cta.rank = rank;
    cta.index = {linear % config.grid[0], linear / config.grid[0] % config.grid[1],
                 linear / config.grid[0] / config.grid[1]};
    start_cta(cta);
  }
  clusters_.push_back(std::move(cluster));
  return true;
}

void Engine::start_cta(Cta& cta) {
  cta.num_live = int(config.num_threads);
  cta.smem.assign(config.smem_bytes, 0xff);  // NaN in every float type, -1 in every integer
  cta.history.resize(config.finds_races ? config.smem_bytes : 0);
  cta.warps.resize(config.num_threads / kWarp);
  cta.warpgroups.resize(config.num_threads / 128);
  for (u32 t = 0; t < config.num_threads; ++t) {
    if (free_fibers_.empty()) free_fibers_.push_back(make_fiber());
    Fiber* fiber = free_fibers_.back();
    free_fibers_.pop_back();
    fiber->reset(cta, t);
    makecontext(&fiber->entry, &Engine::enter, 0);
    cta.fibers.push_back(fiber);
    runnable_.push_back(fiber);
  }
}

void Engine::retire(Fiber* fiber) {
  Cta& cta = *fiber->cta;
  --cta.num_live;
  leave_barriers(cta);
  auto is_ours = [&](const auto& copy) { return copy.first == &cta; };
  if (cta.num_live == 0 && std::any_of(async_.begin(), async_.end(), is_ours)) {
    fault = Fault::kMisuse;
    fault_text = where(cta) + " ended while tma_load was still writing its shared memory";
    return;
  }
  Cluster* cluster = cta.cluster;
  if (cluster->num_live() > 0) return;
  for (const auto& ended : cluster->ctas) {
    free_fibers_.insert(free_fibers_.end(), ended->fibers.begin(), ended->fibers.end());
  }
  clusters_.erase(std::find_if(clusters_.begin(), clusters_.end(),
                               [&](const auto& other) { return other.get() == cluster; }));
  start_cluster();
}

void Engine::block(const char* waits_on, u32 operand) {
  current->waits_on = waits_on;
  current->wait_operand = operand;
  switch_to_scheduler();
  current->waits_on = nullptr;
}

void Engine::wake(Fiber* fiber) { runnable_.push_back(fiber); }

void Engine::step(const void* site) {
  current->site = site;
  if (++num_steps_ % kStepsPerClockRead == 0) check_time();
  const bool is_preempted = config.seed != 0 && random_() % 16 == 0;
  if (is_preempted || ++steps_since_switch_ > kStepsPerSlice) {
    runnable_.push_back(current);
    switch_to_scheduler();
  }
}

void Engine::check_time() {
  if (now_s() < deadline_) return;
  fault = Fault::kTimeout;
  fault_text = "the grid did not finish within " + std::to_string(config.timeout_s) + " s";
  runnable_.push_back(current);
  switch_to_scheduler();
}

// NOTE: a plain dereference of a tagged pointer and an overflow of the stack both end here. What
// the C++ library held at that moment is lost, which a run that failed can bear.
void Engine::crash() {
  fault = Fault::kOutOfBounds;
  fault_text = "thread " + std::to_string(current->thread) + " of " + where(*current->cta) +
               " touches memory without a wrapper of attnhub/ptx, or overflows its stack of " +
               std::to_string(kStackBytes) + " bytes, when last seen " + site_text(current->site);
  current->is_done = current->has_failed = true;
  _longjmp(scheduler_, 1);
}

void Engine::run(Report& report) {
  // At least one cluster, however few CTAs may be resident.
  for (u32 i = 0; (i == 0 || i + config.cluster <= config.num_resident) && start_cluster();) {
    i += config.cluster;
  }
  while (fault == Fault::kNone && !clusters_.empty()) {
    Fiber* fiber = pick();
    if (fiber == nullptr) {
      fault = Fault::kDeadlock;
      fault_text = "no thread can go on";
      break;
    }
    resume(fiber);
    if (fiber->is_done && fault == Fault::kNone) retire(fiber);
  }
  report.fault = fault;
  report.num_switches = num_switches_;
  const std::string text = fault == Fault::kNone ? "" : fault_text + "\n" + dump();
  snprintf(report.text, sizeof(report.text), "%s", text.c_str());
}

}  // namespace attnhub::emulator

namespace {

// While a grid runs, a memory fault is the kernel's. A tagged pointer gives either signal.
class CrashGuard {
 public:
  CrashGuard() : stack_(64 * 1024) {
    stack_t ours{};
    ours.ss_sp = stack_.data();
    ours.ss_size = stack_.size();
    sigaltstack(&ours, &old_stack_);
    struct sigaction action{};
    action.sa_handler = [](int) { attnhub::emulator::engine->crash(); };
    action.sa_flags = SA_ONSTACK | SA_NODEFER;
    sigaction(SIGSEGV, &action, &old_segv_);
    sigaction(SIGBUS, &action, &old_bus_);
  }
  ~CrashGuard() {
    sigaction(SIGSEGV, &old_segv_, nullptr);
    sigaction(SIGBUS, &old_bus_, nullptr);
    sigaltstack(&old_stack_, nullptr);
  }

 private:
  std::vector<char> stack_;
  stack_t old_stack_{};
  struct sigaction old_segv_{}, old_bus_{};
};

}  // namespace

extern "C" void attnhub_emulator_run(attnhub::emulator::KernelBody body, const void* params,
                                     const attnhub::emulator::Config* config,
                                     attnhub::emulator::Report* report) {
  using namespace attnhub::emulator;
  Engine grid(*config, body, params);
  engine = &grid;
  const CrashGuard guard;
  grid.run(*report);
  engine = nullptr;
}
