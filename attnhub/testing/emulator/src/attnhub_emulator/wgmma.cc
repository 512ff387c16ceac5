// Warpgroup products, computed at the wait that covers them: the latest that hardware may take, so
// that operands which are overwritten or accumulators which are read too early give wrong numbers.
#include <cstring>

#include "engine.h"
#include "numeric.h"

namespace attnhub::emulator {

namespace {

constexpr u32 kWarpgroup = 128;
constexpr int kRows = 64, kDepth = 16;

// An operand in shared memory, [mn, 16], as its descriptor names it.
struct Operand {
  u32 address, leading, stride, row_bytes;
  bool is_mn_major;

  Operand(u64 descriptor, bool mn_major)
      : address(u32(descriptor & 0x3fff) << 4),
        leading(u32(descriptor >> 16 & 0x3fff) << 4),
        stride(u32(descriptor >> 32 & 0x3fff) << 4),
        row_bytes(256u >> (descriptor >> 62)),
        is_mn_major(mn_major) {}

  u32 at(u32 mn, u32 k) const {
    const u32 per_row = row_bytes / 2;
    const u32 linear = is_mn_major ? address + mn / per_row * leading + k / 8 * stride +
                                         k % 8 * row_bytes + mn % per_row * 2
                                   : address + mn / 8 * stride + mn % 8 * row_bytes + k * 2;
    return linear ^ (((linear >> 7) & (row_bytes / 16 - 1)) << 4);
  }
};

Operand make_operand(u64 descriptor, bool is_mn_major) {
  if (descriptor >> 62 == 0) {
    fail(Fault::kMisuse, "gives wgmma an operand without a swizzle, which is not emulated");
  }
  return Operand(descriptor, is_mn_major);
}

// Reads of 16 bytes at a time: a swizzle moves no smaller piece.
void note_operand(const Operand& operand, u32 num_mn, u32 agent, u32 clock) {
  for (u32 i = 0; i < num_mn * kDepth; i += 8) {
    const u32 address = operand.is_mn_major ? operand.at(i % num_mn, i / num_mn)
                                            : operand.at(i / kDepth, i % kDepth);
    check_shared(address, 16, "reads by wgmma");
    note_async_read(address, 16, agent, clock);
  }
}

float value(u16 bits, bool is_bf16) { return is_bf16 ? bf16_to_float(bits) : half_to_float(bits); }

std::vector<float> load(const Operand& operand, u32 num_mn, bool is_bf16) {
  std::vector<float> values(num_mn * kDepth);  // (16, num_mn)
  for (u32 k = 0; k < kDepth; ++k) {
    for (u32 i = 0; i < num_mn; ++i) {
      u16 bits;
      memcpy(&bits, smem_at(operand.at(i, k)), 2);
      values[k * num_mn + i] = value(bits, is_bf16);
    }
  }
  return values;
}

std::vector<float> load_registers(Fiber* const* threads, size_t group, size_t index) {
  std::vector<float> values(kRows * kDepth);  // (16, 64)
  for (u32 t = 0; t < kWarpgroup; ++t) {
    const PendingProduct& mine = threads[t]->product_groups[group][index];
    for (u32 r = 0; r < 4; ++r) {
      for (u32 e = 0; e < 2; ++e) {
        const u32 row = t / 32 * 16 + t % 32 / 4 + r % 2 * 8;
        const u32 k = t % 4 * 2 + e + r / 2 * 8;
        values[k * kRows + row] = value(u16(mine.a_registers[r] >> 16 * e), mine.product.is_bf16);
      }
    }
  }
  return values;
}

// Product `index` of the oldest group of all 128 threads.
void multiply(Fiber* const* threads, size_t index) {
  const PendingProduct& first = threads[0]->product_groups[0][index];
  const u32 n = u32(first.product.n);
  const bool is_bf16 = first.product.is_bf16;
  const std::vector<float> a =
      first.has_registers ? load_registers(threads, 0, index)
                          : load(Operand(first.a, first.product.a_is_mn_major), kRows, is_bf16);
  const std::vector<float> b = load(Operand(first.b, first.product.b_is_mn_major), n, is_bf16);
  std::vector<float> sums(kRows * n, 0.0f);
  for (u32 k = 0; k < kDepth; ++k) {
    for (u32 row = 0; row < kRows; ++row) {
      for (u32 j = 0; j < n; ++j) sums[row * n + j] += a[k * kRows + row] * b[k * n + j];
    }
  }
  for (u32 t = 0; t < kWarpgroup; ++t) {
    float* d = threads[t]->product_groups[0][index].d;
    for (u32 i = 0; i < n / 2; ++i) {
      const u32 row = t / 32 * 16 + t % 32 / 4 + i / 2 % 2 * 8;
      const u32 column = i / 4 * 8 + t % 4 * 2 + i % 2;
      d[i] = sums[row * n + column] + (first.product.adds ? d[i] : 0.0f);
    }
  }
}

// Runs once all threads of the warpgroup wait.
void finish_groups(Fiber* const* threads, size_t num_pending, u32 warpgroup) {
  auto& groups = threads[0]->product_groups;
  for (u32 t = 1; t < kWarpgroup; ++t) {
    if (threads[t]->product_groups.size() != groups.size()) {
      fail(Fault::kMisuse, "waits for wgmma while threads of its warpgroup issued other products");
    }
  }
  while (groups.size() > num_pending) {
    const size_t num_products = groups.front().size();
    for (size_t i = 0; i < num_products; ++i) multiply(threads, i);
    for (u32 t = 0; t < kWarpgroup; ++t) {
      threads[t]->product_groups.pop_front();
      ++threads[t]->clock[wgmma_agent(cta().rank, warpgroup)];
    }
  }
}

}  // namespace

void wgmma(float* d, const u32* a_registers, u64 a, u64 b, const Product& product) {
  ATTNHUB_EMULATOR_STEP();
  Fiber& fiber = self();
  PendingProduct pending{d, a_registers != nullptr, {}, a, b, product};
  if (a_registers != nullptr) memcpy(pending.a_registers, a_registers, sizeof(u32) * 4);
  const Operand operand_b = make_operand(b, product.b_is_mn_major);
  if (fiber.thread % kWarpgroup == 0) {  // one thread stands for the warpgroup
    const u32 agent = wgmma_agent(cta().rank, fiber.thread / kWarpgroup);
    const u32 clock = fiber.clock[agent] + u32(fiber.product_groups.size()) + 1;
    if (a_registers == nullptr) {
      note_operand(make_operand(a, product.a_is_mn_major), kRows, agent, clock);
    }
    note_operand(operand_b, u32(product.n), agent, clock);
  }
  fiber.open_products.push_back(pending);
}

void wgmma_commit() {
  ATTNHUB_EMULATOR_STEP();
  self().product_groups.push_back(std::move(self().open_products));
  self().open_products.clear();
}

void wgmma_wait(int num_pending) {
  ATTNHUB_EMULATOR_STEP();
  Fiber& fiber = self();
  const u32 warpgroup = fiber.thread / kWarpgroup;
  Barrier& barrier = cta().warpgroups[warpgroup];
  barrier.waiting.push_back(&fiber);
  if (++barrier.num_arrived < int(kWarpgroup)) {
    engine->block("wgmma_wait", 0);
    return;
  }
  finish_groups(&cta().fibers[warpgroup * kWarpgroup], size_t(num_pending), warpgroup);
  const std::vector<Fiber*> woken = std::move(barrier.waiting);
  barrier = Barrier{};
  for (Fiber* other : woken) {
    if (other != &fiber) engine->wake(other);
  }
}

}  // namespace attnhub::emulator
