// mbarriers: phases, the bytes of copies, and arrivals that are one too many.
#include "engine.h"

namespace attnhub::emulator {

Mbarrier& find_mbarrier(u32 address, const char* verb) {
  check_shared(address, 8, verb);
  auto& mbarriers = cta_at(address).mbarriers;
  const auto found = mbarriers.find(local_address(address));
  if (found == mbarriers.end()) {
    fail(Fault::kMisuse, "%s an mbarrier at shared offset %u, where none was initialised", verb,
         offset_at(address));
  }
  return found->second;
}

void end_phase_if_complete(Mbarrier& mbarrier) {
  if (mbarrier.num_pending > 0 || mbarrier.num_bytes != 0) return;
  ++mbarrier.phase;
  mbarrier.num_pending = mbarrier.num_arrivals;
  join(mbarrier.seen, mbarrier.gathered);
  mbarrier.gathered.clear();
  std::vector<std::pair<Fiber*, u32>> still_waiting;
  for (const auto& [fiber, parity] : mbarrier.waiting) {
    if ((mbarrier.phase & 1) == parity) {
      still_waiting.emplace_back(fiber, parity);
    } else {
      join(fiber->clock, mbarrier.seen);
      engine->wake(fiber);
    }
  }
  mbarrier.waiting = std::move(still_waiting);
}

void mbarrier_init(u32 address, u32 num_arrivals) {
  ATTNHUB_EMULATOR_STEP();
  check_shared(address, 8, "initialises an mbarrier in");
  if (num_arrivals == 0) fail(Fault::kMisuse, "initialises an mbarrier for no arrival");
  Mbarrier fresh;
  fresh.num_arrivals = fresh.num_pending = int(num_arrivals);
  release(self(), fresh.seen);
  cta().mbarriers[address] = fresh;
}

void mbarrier_arrive(u32 address, u32 num_bytes) {
  ATTNHUB_EMULATOR_STEP();
  Mbarrier& mbarrier = find_mbarrier(address, "arrives at");
  if (mbarrier.num_pending == 0) {
    fail(Fault::kMisuse,
         "arrives at the mbarrier at shared offset %u once too often: all %d arrivals of phase %u "
         "have come, %lld bytes have not",
         offset_at(address), mbarrier.num_arrivals, mbarrier.phase, mbarrier.num_bytes);
  }
  mbarrier.num_bytes += num_bytes;
  --mbarrier.num_pending;
  release(self(), mbarrier.gathered);
  end_phase_if_complete(mbarrier);
}

// NOTE: the copies finish here, though they might later: this thread may never wait for them.
void mbarrier_arrive_after_cp_async(u32 address) {
  ATTNHUB_EMULATOR_STEP();
  finish_cp_async();
  mbarrier_arrive(address, 0);
}

void mbarrier_wait(u32 address, u32 parity) {
  ATTNHUB_EMULATOR_STEP();
  Mbarrier& mbarrier = find_mbarrier(address, "waits for");
  if ((mbarrier.phase & 1) == parity) {
    mbarrier.waiting.emplace_back(&self(), parity);
    engine->block("mbarrier at shared offset %u", offset_at(address));
  } else {
    join(self().clock, mbarrier.seen);
  }
}

void fence_mbarrier_init() { ATTNHUB_EMULATOR_STEP(); }

void fence_proxy_async() {
  ATTNHUB_EMULATOR_STEP();
  Fiber& fiber = self();
  fiber.fenced = fiber.clock;
  ++fiber.clock[fiber.agent];  // what it writes from now on is not covered
}

}  // namespace attnhub::emulator
