// Shared and global memory: bounds, alignment, races, and cp.async copies that arrive late.
#include <cstring>

#include "engine.h"

namespace attnhub::emulator {

namespace {

bool has_seen(const Fiber& fiber, u16 who, u32 clock) {
  return clock != kInFlight && (who == fiber.agent || fiber.clock[who] >= clock);
}

// NOTE: num_bytes is an access width here, so a misaligned address faults on a GPU.
void check_aligned(u64 address, size_t num_bytes, const char* verb, const char* space) {
  if (address % num_bytes != 0) {
    fail(Fault::kMisuse, "%s %zu bytes of %s memory at %#llx, which is not a multiple of %zu", verb,
         num_bytes, space, address, num_bytes);
  }
}

// The place in memory that a tagged pointer means.
unsigned char* check_global(const void* pointer, size_t num_bytes, const char* verb,
                            bool is_write) {
  const u64 tagged = reinterpret_cast<u64>(pointer);
  const u64 tag = tagged >> kTagShift, address = tagged & ((1ull << kTagShift) - 1);
  if (tag == 0 || tag > u64(engine->config.num_buffers)) {
    fail(Fault::kOutOfBounds, "%s %zu bytes of global memory at %#llx, which is in no tensor", verb,
         num_bytes, tagged);
  }
  const Buffer& buffer = engine->config.buffers[tag - 1];
  if (address < buffer.begin || address + num_bytes > buffer.end) {
    fail(Fault::kOutOfBounds, "%s %zu bytes of global memory at offset %lld of %s, which has %llu",
         verb, num_bytes, static_cast<long long>(address - buffer.begin), buffer.name,
         static_cast<unsigned long long>(buffer.end - buffer.begin));
  }
  if (is_write && !buffer.is_writable) {
    fail(Fault::kOutOfBounds, "%s %s, a const parameter", verb, buffer.name);
  }
  check_aligned(address, num_bytes, verb, "global");
  return reinterpret_cast<unsigned char*>(address);
}

void finish(const AsyncCopy& copy) {
  Fiber& fiber = self();
  unsigned char* to = smem_at(copy.to);
  if (copy.is_valid) {
    memcpy(to, copy.from, size_t(copy.num_bytes));
  } else {
    memset(to, 0, size_t(copy.num_bytes));
  }
  if (!engine->config.finds_races) return;
  for (int i = 0; i < copy.num_bytes; ++i) {
    ByteHistory& byte = history_at(copy.to + u32(i));
    byte.writer = u16(fiber.agent);
    byte.write_clock = fiber.clock[fiber.agent];
  }
}

int* atomic_word(const int* address, const char* verb, bool is_write) {
  return reinterpret_cast<int*>(check_global(address, sizeof(int), verb, is_write));
}

}  // namespace

// Addresses of other CTAs carry their rank + 1 in the top byte.
u32 cluster_address(u32 address, u32 rank) {
  ATTNHUB_EMULATOR_STEP();
  if (rank >= engine->config.cluster) {
    fail(Fault::kMisuse, "asks for rank %u of a cluster of %u", rank, engine->config.cluster);
  }
  return local_address(address) | (rank + 1) << 24;
}

u32 cluster_rank() { return cta().rank; }

u32 local_address(u32 address) { return address & 0xffffffu; }

Cta& cta_at(u32 address) {
  const u32 rank = address >> 24;
  return rank == 0 ? cta() : *cta().cluster->ctas[rank - 1];
}

unsigned char* smem_at(u32 address) { return cta_at(address).smem.data() + offset_at(address); }

ByteHistory& history_at(u32 address) { return cta_at(address).history[offset_at(address)]; }

void check_shared(u32 address, size_t num_bytes, const char* verb) {
  if (address >> 24 > engine->config.cluster) {
    fail(Fault::kOutOfBounds, "%s shared memory at %#x, which is in no CTA", verb, address);
  }
  const Cta& owner = cta_at(address);
  if (local_address(address) < kSmemBase || offset_at(address) + num_bytes > owner.smem.size()) {
    fail(Fault::kOutOfBounds, "%s %zu bytes of shared memory at offset %d of %zu", verb, num_bytes,
         int(local_address(address)) - int(kSmemBase), owner.smem.size());
  }
  if (owner.num_live == 0) {
    fail(Fault::kMisuse, "%s shared memory of cluster rank %u, which has ended", verb, owner.rank);
  }
  check_aligned(address, num_bytes, verb, "shared");
}

namespace {

void check_read(const Fiber& fiber, const ByteHistory& byte, u32 offset) {
  if (has_seen(fiber, byte.writer, byte.write_clock)) return;
  const std::string writer = agent_name(byte.writer);
  if (byte.write_clock == kInFlight) {
    fail(Fault::kRace,
         "reads shared byte %u while a copy by %s to it is in flight: it must be waited for",
         offset, writer.c_str());
  }
  fail(Fault::kRace, "reads shared byte %u, which %s wrote, with no barrier between", offset,
       writer.c_str());
}

void check_write(const Fiber& fiber, const ByteHistory& byte, u32 offset, bool is_same) {
  if (!has_seen(fiber, byte.reader, byte.read_clock)) {
    fail(Fault::kRace, "overwrites shared byte %u, which %s read, with no barrier between", offset,
         agent_name(byte.reader).c_str());
  }
  const bool is_in_flight = byte.write_clock == kInFlight;
  if (!has_seen(fiber, byte.writer, byte.write_clock) && (is_in_flight || !is_same)) {
    fail(Fault::kRace, "overwrites shared byte %u, which %s %s, with no barrier between", offset,
         agent_name(byte.writer).c_str(), is_in_flight ? "is copying to" : "wrote");
  }
}

// A write of the generic proxy is seen by the async proxy after a fence, by the writer or, when it
// has seen the write, by the reader.
bool has_fenced(const Fiber& fiber, const ByteHistory& byte) {
  if (byte.writer >= num_fibers() || byte.write_clock == 0) return true;
  const u32 num_threads = engine->config.num_threads;
  const Cta& writer_cta = *fiber.cta->cluster->ctas[byte.writer / num_threads];
  const Fiber& writer = *writer_cta.fibers[byte.writer % num_threads];
  return fiber.fenced[byte.writer] >= byte.write_clock ||
         writer.fenced[byte.writer] >= byte.write_clock;
}

}  // namespace

void note_read(u32 address, size_t num_bytes) {
  if (!engine->config.finds_races) return;
  const Fiber& fiber = self();
  for (u32 i = 0; i < num_bytes; ++i) {
    ByteHistory& byte = history_at(address + i);
    check_read(fiber, byte, offset_at(address + i));
    byte.reader = u16(fiber.agent);
    byte.read_clock = fiber.clock[fiber.agent];
  }
}

// `value`: what is written, if known: threads may store the same value.
void note_write(u32 address, size_t num_bytes, const void* value) {
  if (!engine->config.finds_races) return;
  const Fiber& fiber = self();
  const bool is_same = value != nullptr && memcmp(smem_at(address), value, num_bytes) == 0;
  for (u32 i = 0; i < num_bytes; ++i) {
    ByteHistory& byte = history_at(address + i);
    check_write(fiber, byte, offset_at(address + i), is_same);
    byte.writer = u16(fiber.agent);
    byte.write_clock = fiber.clock[fiber.agent];
  }
}

// The copy engine or a tensor core begins to read; it is done when `agent` reaches `clock`.
void note_async_read(u32 address, size_t num_bytes, u32 agent, u32 clock) {
  if (!engine->config.finds_races) return;
  const Fiber& fiber = self();
  for (u32 i = 0; i < num_bytes; ++i) {
    ByteHistory& byte = history_at(address + i);
    check_read(fiber, byte, offset_at(address + i));
    if (!has_fenced(fiber, byte)) {
      fail(Fault::kRace,
           "reads shared byte %u asynchronously, which %s wrote, with no fence_proxy_async "
           "between",
           offset_at(address + i), agent_name(byte.writer).c_str());
    }
    byte.reader = u16(agent);
    byte.read_clock = clock;
  }
}

// cp.async or the copy engine begins to write; end it by setting the clocks of the bytes.
void note_async_write(u32 address, size_t num_bytes, u32 agent) {
  if (!engine->config.finds_races) return;
  for (u32 i = 0; i < num_bytes; ++i) {
    ByteHistory& byte = history_at(address + i);
    check_write(self(), byte, offset_at(address + i), false);
    byte.writer = u16(agent);
    byte.write_clock = kInFlight;
  }
}

u32 dynamic_smem() { return kSmemBase; }

void shared_read(u32 address, void* to, size_t num_bytes) {
  ATTNHUB_EMULATOR_STEP();
  check_shared(address, num_bytes, "reads");
  note_read(address, num_bytes);
  memcpy(to, smem_at(address), num_bytes);
}

void shared_write(u32 address, const void* from, size_t num_bytes) {
  ATTNHUB_EMULATOR_STEP();
  check_shared(address, num_bytes, "writes");
  note_write(address, num_bytes, from);
  memcpy(smem_at(address), from, num_bytes);
}

void global_read(const void* address, void* to, size_t num_bytes) {
  ATTNHUB_EMULATOR_STEP();
  memcpy(to, check_global(address, num_bytes, "reads", false), num_bytes);
}

void global_write(void* address, const void* from, size_t num_bytes) {
  ATTNHUB_EMULATOR_STEP();
  memcpy(check_global(address, num_bytes, "writes", true), from, num_bytes);
}

int atomic_add(int* address, int value) {
  ATTNHUB_EMULATOR_STEP();
  int* word = atomic_word(address, "adds to", true);
  const int before = *word;
  *word = int(u32(before) + u32(value));
  return before;
}

int atomic_max(int* address, int value) {
  ATTNHUB_EMULATOR_STEP();
  int* word = atomic_word(address, "takes the maximum of", true);
  const int before = *word;
  if (value > before) *word = value;
  return before;
}

int atomic_cas(int* address, int expected, int value) {
  ATTNHUB_EMULATOR_STEP();
  int* word = atomic_word(address, "exchanges", true);
  const int before = *word;
  if (before == expected) *word = value;
  return before;
}

int ld_acquire(const int* address) {
  ATTNHUB_EMULATOR_STEP();
  return *atomic_word(address, "reads", false);
}

void st_release(int* address, int value) {
  ATTNHUB_EMULATOR_STEP();
  *atomic_word(address, "writes", true) = value;
}

void cp_async(u32 to, const void* from, int num_bytes, bool is_valid) {
  ATTNHUB_EMULATOR_STEP();
  check_shared(to, size_t(num_bytes), "copies to");
  if (is_valid) from = check_global(from, size_t(num_bytes), "copies from", false);
  note_async_write(to, size_t(num_bytes), self().agent);
  self().open_copies.push_back({to, from, num_bytes, is_valid});
}

void cp_async_commit() {
  ATTNHUB_EMULATOR_STEP();
  self().copy_groups.push_back(std::move(self().open_copies));
  self().open_copies.clear();
}

void finish_cp_async() {
  cp_async_wait(0);
  for (const AsyncCopy& copy : self().open_copies) finish(copy);
  self().open_copies.clear();
}

// NOTE: a group arrives only here, the latest that hardware may take: code that reads it earlier is
// wrong on a GPU only sometimes, and here always.
void cp_async_wait(int num_pending) {
  ATTNHUB_EMULATOR_STEP();
  auto& groups = self().copy_groups;
  while (groups.size() > size_t(num_pending)) {
    for (const AsyncCopy& copy : groups.front()) finish(copy);
    groups.pop_front();
  }
}

}  // namespace attnhub::emulator
