// The copy engine: boxes of a tensor, zero outside, swizzled, finished as late as possible.
#include <cstring>

#include "engine.h"

namespace attnhub::emulator {

namespace {

struct Box {
  const TensorMapContent* map;
  u32 smem;  // shared address
  long long at[5];

  u32 num_bytes() const {
    u32 count = map->element_bytes;
    for (u32 i = 0; i < map->rank; ++i) count *= map->box[i];
    return count;
  }

  // Calls visit(shared address, pointer into the tensor or null) for each element.
  template <class Visit>
  void each(Visit visit) const {
    const u32 num_elements = num_bytes() / map->element_bytes;
    for (u32 e = 0; e < num_elements; ++e) {
      u32 rest = e;
      u64 offset = 0;
      bool is_inside = true;
      for (u32 i = 0; i < map->rank; ++i) {
        const long long index = at[i] + rest % map->box[i];
        rest /= map->box[i];
        is_inside = is_inside && index >= 0 && u64(index) < map->sizes[i];
        offset += u64(index) * map->stride_bytes[i];
      }
      const u32 linear = smem + e * map->element_bytes;
      const u32 mask = map->swizzle_bytes == 0 ? 0 : map->swizzle_bytes / 16 - 1;
      const u32 address = linear ^ (((linear >> 7) & mask) << 4);
      visit(address, is_inside ? reinterpret_cast<unsigned char*>(map->base + offset) : nullptr);
    }
  }
};

// Hardware ends either of these in an illegal instruction; seen on an H200, with and without a
// swizzle, for elements of 1, 2 and 4 bytes.
void check_coordinates(const Box& box, const char* verb, bool is_store) {
  const long long byte = box.at[0] * box.map->element_bytes;
  if (byte % 16 != 0) {
    fail(Fault::kMisuse,
         "%s a box at innermost coordinate %lld, byte %lld of a row, which is not a multiple of 16",
         verb, box.at[0], byte);
  }
  for (u32 i = 0; is_store && i < box.map->rank; ++i) {
    if (box.at[i] >= 0) continue;
    fail(Fault::kMisuse,
         "stores a box at coordinate %lld of dimension %u: only loads may begin before a tensor",
         box.at[i], i);
  }
}

Box make_box(const void* map, u32 smem, const int* coordinates, int rank, const char* verb,
             bool is_store = false) {
  Box box{static_cast<const TensorMapContent*>(map), smem, {}};
  if (int(box.map->rank) != rank) {
    fail(Fault::kMisuse, "gives %d coordinates for a tensor map of %u dimensions", rank,
         box.map->rank);
  }
  for (int i = 0; i < rank; ++i) box.at[i] = coordinates[i];
  check_coordinates(box, verb, is_store);
  const u32 alignment = box.map->swizzle_bytes == 0 ? 128 : box.map->swizzle_bytes * 8;
  if (smem % alignment != 0) {
    fail(Fault::kMisuse, "%s a box at shared offset %u, which is not a multiple of %u", verb,
         offset_at(smem), alignment);
  }
  check_shared(smem, 16, verb);
  check_shared(smem + box.num_bytes() - 16, 16, verb);
  return box;
}

// Bounds are those of the map: a box is cut there, as the hardware does.
void check_writable(const TensorMapContent& map) {
  for (int i = 0; i < engine->config.num_buffers; ++i) {
    const Buffer& buffer = engine->config.buffers[i];
    if (buffer.begin <= map.base && map.base < buffer.end && !buffer.is_writable) {
      fail(Fault::kOutOfBounds, "stores to %s, a const parameter", buffer.name);
    }
  }
}

}  // namespace

namespace {

// Starts a copy into the CTA that the addresses are of.
void start_load(u32 to, const void* map, u32 mbarrier_address, const int* coordinates, int rank) {
  find_mbarrier(mbarrier_address, "loads with");
  Cta* target = &cta_at(to);
  const u32 agent = tma_agent(target->rank);
  const Box box = make_box(map, to, coordinates, rank, "loads");
  note_async_write(to, box.num_bytes(), agent);
  engine->start_async(target, [=] {
    const u32 clock = ++target->num_tma_loads, element_bytes = box.map->element_bytes;
    box.each([&](u32 address, const unsigned char* element) {
      unsigned char* place = target->smem.data() + offset_at(address);
      if (element != nullptr) {
        memcpy(place, element, element_bytes);
      } else {
        memset(place, 0, element_bytes);
      }
    });
    if (!target->history.empty()) {
      ByteHistory* bytes = &target->history[offset_at(box.smem)];
      for (u32 i = 0; i < box.num_bytes(); ++i) bytes[i].write_clock = clock;
    }
    Mbarrier& mbarrier = target->mbarriers.at(local_address(mbarrier_address));
    VectorClock done(num_agents(), 0);
    done[agent] = clock;
    join(mbarrier.gathered, done);
    mbarrier.num_bytes -= box.num_bytes();
    end_phase_if_complete(mbarrier);
  });
}

}  // namespace

void tma_load(u32 to, const void* map, u32 mbarrier, const int* coordinates, int rank) {
  ATTNHUB_EMULATOR_STEP();
  start_load(to, map, mbarrier, coordinates, rank);
}

void tma_load_multicast(u32 to, const void* map, u32 mbarrier, const int* coordinates, int rank,
                        u16 ctas) {
  ATTNHUB_EMULATOR_STEP();
  if (ctas == 0 || ctas >> engine->config.cluster != 0) {
    fail(Fault::kMisuse, "loads to CTAs %#x of a cluster of %u", ctas, engine->config.cluster);
  }
  for (u32 target = 0; target < engine->config.cluster; ++target) {
    if ((ctas >> target & 1) == 0) continue;
    const u32 window = (target + 1) << 24;
    start_load(local_address(to) | window, map, local_address(mbarrier) | window, coordinates,
               rank);
  }
}

void tma_store(const void* map, u32 from, const int* coordinates, int rank) {
  ATTNHUB_EMULATOR_STEP();
  const Box box = make_box(map, from, coordinates, rank, "stores", /*is_store=*/true);
  check_writable(*box.map);
  note_async_read(from, box.num_bytes(), tma_agent(cta().rank), kInFlight);
  self().open_stores.push_back([=] {
    box.each([&](u32 address, unsigned char* element) {
      if (element != nullptr) memcpy(element, smem_at(address), box.map->element_bytes);
    });
    if (!engine->config.finds_races) return;
    for (u32 i = 0; i < box.num_bytes(); ++i) {
      ByteHistory& byte = history_at(box.smem + i);
      byte.reader = u16(self().agent);
      byte.read_clock = self().clock[self().agent];
    }
  });
}

void bulk_commit() {
  ATTNHUB_EMULATOR_STEP();
  self().store_groups.push_back(std::move(self().open_stores));
  self().open_stores.clear();
}

void bulk_wait(int num_pending) {
  ATTNHUB_EMULATOR_STEP();
  auto& groups = self().store_groups;
  while (groups.size() > size_t(num_pending)) {
    for (const auto& store : groups.front()) store();
    groups.pop_front();
  }
}

}  // namespace attnhub::emulator
