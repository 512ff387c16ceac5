// Barriers of a CTA: sync_threads() is barrier 0, which counts the threads that have not exited.
#include "engine.h"

namespace attnhub::emulator {

namespace {

void complete(Barrier& barrier) {
  const VectorClock seen = std::move(barrier.gathered);
  const std::vector<Fiber*> woken = std::move(barrier.waiting);
  barrier = Barrier{};
  for (Fiber* fiber : woken) {
    join(fiber->clock, seen);
    engine->wake(fiber);
  }
}

void complete_if_all_came(Barrier& barrier, int num_live) {
  barrier.expected = num_live;
  if (barrier.num_arrived > 0 && barrier.num_arrived == num_live) complete(barrier);
}

void arrive(Barrier& barrier, bool waits, const char* name, u32 id) {
  release(self(), barrier.gathered);
  ++barrier.num_arrived;
  if (waits) barrier.waiting.push_back(&self());
  if (barrier.num_arrived == barrier.expected) complete(barrier);
  if (waits) engine->block(name, id);
}

}  // namespace

// Publishes all that the thread has done: what it does next is not yet covered.
void release(Fiber& fiber, VectorClock& into) {
  join(into, fiber.clock);
  ++fiber.clock[fiber.agent];
}

int Cluster::num_live() const {
  int num_live = 0;
  for (const auto& cta : ctas) num_live += cta->num_live;
  return num_live;
}

void leave_barriers(Cta& cta) {
  complete_if_all_came(cta.barriers[0], cta.num_live);
  complete_if_all_came(cta.cluster->barrier, cta.cluster->num_live());
}

void sync_threads() {
  ATTNHUB_EMULATOR_STEP();
  Barrier& barrier = cta().barriers[0];
  barrier.expected = cta().num_live;
  arrive(barrier, true, "sync_threads", 0);
}

void cluster_sync() {
  ATTNHUB_EMULATOR_STEP();
  Barrier& barrier = cta().cluster->barrier;
  barrier.expected = cta().cluster->num_live();
  arrive(barrier, true, "cluster_sync", 0);
}

void named_barrier(int id, int num_threads, bool waits) {
  ATTNHUB_EMULATOR_STEP();
  if (id < 1 || id > 15) fail(Fault::kMisuse, "uses named barrier %d; ids are 1 to 15", id);
  const int most = int(engine->config.num_threads);
  if (num_threads % kWarp != 0 || num_threads <= 0 || num_threads > most) {
    fail(Fault::kMisuse, "uses named barrier %d for %d threads; give a multiple of 32 up to %d", id,
         num_threads, most);
  }
  Barrier& barrier = cta().barriers[id];
  if (barrier.num_arrived > 0 && barrier.expected != num_threads) {
    fail(Fault::kMisuse, "uses named barrier %d for %d threads, others use it for %d", id,
         num_threads, barrier.expected);
  }
  barrier.expected = num_threads;
  arrive(barrier, waits, "named barrier %u", u32(id));
}

}  // namespace attnhub::emulator
