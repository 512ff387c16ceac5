// Warp instructions: each waits for all its lanes, and the last one to come executes it for all.
#include <cstring>

#include "engine.h"
#include "numeric.h"

namespace attnhub::emulator {

namespace {

// Posts the operands of this lane; whoever completes the mask runs `execute(operands)`.
template <class Execute>
void collective(const char* name, u32 mask, const void* operands, Execute execute) {
  Fiber& fiber = self();
  const u32 bit = 1u << fiber.lane();
  if ((mask & bit) == 0) fail(Fault::kMisuse, "calls %s without being in its mask %#x", name, mask);
  auto& pending = cta().warps[fiber.thread / kWarp];
  Collective* mine = nullptr;
  for (Collective& other : pending) {
    if (other.name == name && other.mask == mask) {
      mine = &other;
    } else if ((other.arrived & mask) != 0 &&
               (other.mask & bit) != 0) {  // each waits for the other
      fail(Fault::kMisuse, "calls %s (mask %#x) while other lanes of its warp are at %s (mask %#x)",
           name, mask, other.name, other.mask);
    }
  }
  if (mine == nullptr) {
    pending.push_back({name, mask});
    mine = &pending.back();
  }
  mine->operands[fiber.lane()] = operands;
  mine->lanes[fiber.lane()] = &fiber;
  mine->arrived |= bit;
  if (mine->arrived != mask) {
    engine->block(name, 0);
    return;
  }
  const Collective complete = *mine;
  pending.erase(pending.begin() + (mine - pending.data()));
  execute(complete);
  for (Fiber* lane : complete.lanes) {
    if (lane != nullptr && lane != &fiber) engine->wake(lane);
  }
}

constexpr u32 kAllLanes = ~0u;

struct LdmatrixOperands {
  u32* r;
  u32 address;
};

// Calls visit(lane, matrix, address of its low element, address of its high element).
template <class Visit>
void each_element(const u32 (&rows)[kWarp], int count, bool is_transposed, Visit visit) {
  for (int m = 0; m < count; ++m) {
    for (int lane = 0; lane < kWarp; ++lane) {
      const u32 i = u32(lane) / 4, j = 2 * (u32(lane) % 4);
      const u32* base = rows + 8 * m;
      visit(lane, m, is_transposed ? base[j] + 2 * i : base[i] + 2 * j,
            is_transposed ? base[j + 1] + 2 * i : base[i] + 2 * (j + 1));
    }
  }
}

template <class Operands>
void gather_rows(const Collective& lanes, u32 (&rows)[kWarp]) {
  for (int lane = 0; lane < kWarp; ++lane) {
    rows[lane] = static_cast<const Operands*>(lanes.operands[lane])->address;
  }
}

struct StmatrixOperands {
  const u32* r;
  u32 address;
};

struct MmaOperands {
  float* d;
  const u32* a;
  u32 b[2];
};

// A[16, k] B[k, 8] of registers with kPack elements each; decode(register, which) reads one.
template <int kPack, class Decode>
void execute_mma(const Collective& lanes, Decode decode) {
  constexpr int kDepth = 8 * kPack;
  float a[16][kDepth], b[kDepth][8];
  for (int lane = 0; lane < kWarp; ++lane) {
    const auto* in = static_cast<const MmaOperands*>(lanes.operands[lane]);
    const int g = lane / 4, c = kPack * (lane % 4);
    for (int e = 0; e < kPack; ++e) {
      for (int r = 0; r < 4; ++r) {
        a[g + 8 * (r % 2)][c + e + kDepth / 2 * (r / 2)] = decode(in->a[r], e);
      }
      for (int r = 0; r < 2; ++r) b[c + e + kDepth / 2 * r][g] = decode(in->b[r], e);
    }
  }
  float d[16][8] = {};
  for (int i = 0; i < 16; ++i) {
    for (int k = 0; k < kDepth; ++k) {
      for (int j = 0; j < 8; ++j) d[i][j] += a[i][k] * b[k][j];
    }
  }
  for (int lane = 0; lane < kWarp; ++lane) {
    float* out = static_cast<const MmaOperands*>(lanes.operands[lane])->d;
    const int g = lane / 4, c = 2 * (lane % 4);
    for (int r = 0; r < 4; ++r) out[r] += d[g + 8 * (r / 2)][c + r % 2];
  }
}

struct ShuffleOperands {
  u32 value;
  u32* result;
  int operand;
};

enum ShuffleKind { kIndex, kXor, kUp, kDown };

int shuffle_source(int kind, int lane, int operand, int width) {
  const int first = lane / width * width;
  int source = lane;
  if (kind == kIndex) source = first + (operand & (width - 1));
  if (kind == kXor) source = lane ^ operand;
  if (kind == kUp) source = lane - operand;
  if (kind == kDown) source = lane + operand;
  return source >= first && source < first + width ? source : lane;
}

}  // namespace

// Races are checked for the lane that gives the address of a row.
void ldmatrix(u32* r, int count, u32 address, bool is_transposed) {
  ATTNHUB_EMULATOR_STEP();
  if (int(self().lane()) < 8 * count) {  // the other lanes' addresses are not used
    check_shared(address, 16, "reads by ldmatrix");
    note_read(address, 16);
  }
  const LdmatrixOperands operands{r, address};
  collective(is_transposed ? "ldmatrix.trans" : "ldmatrix", kAllLanes, &operands,
             [&](const Collective& lanes) {
               u32 rows[kWarp];
               gather_rows<LdmatrixOperands>(lanes, rows);
               each_element(rows, count, is_transposed, [&](int lane, int m, u32 low, u32 high) {
                 u16 bits[2];
                 memcpy(&bits[0], smem_at(low), 2);
                 memcpy(&bits[1], smem_at(high), 2);
                 const auto* mine = static_cast<const LdmatrixOperands*>(lanes.operands[lane]);
                 mine->r[m] = u32(bits[0]) | u32(bits[1]) << 16;
               });
             });
}

void stmatrix(u32 address, const u32* r, int count, bool is_transposed) {
  ATTNHUB_EMULATOR_STEP();
  if (int(self().lane()) < 8 * count) {
    check_shared(address, 16, "writes by stmatrix");
    note_write(address, 16);
  }
  const StmatrixOperands operands{r, address};
  collective(is_transposed ? "stmatrix.trans" : "stmatrix", kAllLanes, &operands,
             [&](const Collective& lanes) {
               u32 rows[kWarp];
               gather_rows<StmatrixOperands>(lanes, rows);
               each_element(rows, count, is_transposed, [&](int lane, int m, u32 low, u32 high) {
                 const auto* mine = static_cast<const StmatrixOperands*>(lanes.operands[lane]);
                 const u16 bits[2] = {u16(mine->r[m]), u16(mine->r[m] >> 16)};
                 memcpy(smem_at(low), &bits[0], 2);
                 memcpy(smem_at(high), &bits[1], 2);
               });
             });
}

void mma_m16n8k16(float* d, const u32* a, u32 b0, u32 b1, bool is_bf16) {
  ATTNHUB_EMULATOR_STEP();
  const MmaOperands operands{d, a, {b0, b1}};
  collective("mma.m16n8k16", kAllLanes, &operands, [&](const Collective& lanes) {
    execute_mma<2>(lanes, [&](u32 pair, int e) { return pair_element(pair, e, is_bf16); });
  });
}

void mma_m16n8k32(float* d, const u32* a, u32 b0, u32 b1, bool is_e5m2) {
  ATTNHUB_EMULATOR_STEP();
  const MmaOperands operands{d, a, {b0, b1}};
  collective("mma.m16n8k32", kAllLanes, &operands, [&](const Collective& lanes) {
    execute_mma<4>(lanes, [&](u32 four, int e) { return fp8_to_float(four >> (8 * e), is_e5m2); });
  });
}

u32 movmatrix(u32 r) {
  ATTNHUB_EMULATOR_STEP();
  struct Operands {
    u32 r;
    u32* result;
  };
  u32 result = 0;
  const Operands operands{r, &result};
  collective("movmatrix", kAllLanes, &operands, [](const Collective& lanes) {
    u16 matrix[8][8];
    for (int lane = 0; lane < kWarp; ++lane) {
      const u32 held = static_cast<const Operands*>(lanes.operands[lane])->r;
      for (int e = 0; e < 2; ++e) matrix[lane / 4][lane % 4 * 2 + e] = u16(held >> (16 * e));
    }
    for (int lane = 0; lane < kWarp; ++lane) {
      const int i = lane / 4, j = lane % 4 * 2;
      *static_cast<const Operands*>(lanes.operands[lane])->result =
          u32(matrix[j][i]) | u32(matrix[j + 1][i]) << 16;
    }
  });
  return result;
}

u32 shuffle(int kind, u32 value, int operand, int width, u32 mask) {
  ATTNHUB_EMULATOR_STEP();
  u32 result = 0;
  const ShuffleOperands operands{value, &result, operand};
  collective("shfl", mask, &operands, [&](const Collective& lanes) {
    for (int lane = 0; lane < kWarp; ++lane) {
      const auto* mine = static_cast<const ShuffleOperands*>(lanes.operands[lane]);
      if (mine == nullptr) continue;
      const int source = shuffle_source(kind, lane, mine->operand, width);
      if (lanes.operands[source] == nullptr) {
        fail(Fault::kMisuse, "shuffles from lane %d, which is not in mask %#x", source, mask);
      }
      *mine->result = static_cast<const ShuffleOperands*>(lanes.operands[source])->value;
    }
  });
  return result;
}

u32 ballot(bool predicate, u32 mask) {
  ATTNHUB_EMULATOR_STEP();
  struct Operands {
    bool predicate;
    u32* result;
  };
  u32 result = 0;
  const Operands operands{predicate, &result};
  collective("vote.ballot", mask, &operands, [](const Collective& lanes) {
    u32 votes = 0;
    for (int lane = 0; lane < kWarp; ++lane) {
      const auto* vote = static_cast<const Operands*>(lanes.operands[lane]);
      if (vote != nullptr && vote->predicate) votes |= 1u << lane;
    }
    for (const void* lane : lanes.operands) {
      if (lane != nullptr) *static_cast<const Operands*>(lane)->result = votes;
    }
  });
  return result;
}

void sync_warp(u32 mask) {
  ATTNHUB_EMULATOR_STEP();
  collective("sync_warp", mask, &mask, [](const Collective& lanes) {
    VectorClock seen;
    for (Fiber* lane : lanes.lanes) {
      if (lane != nullptr) release(*lane, seen);
    }
    for (Fiber* lane : lanes.lanes) {
      if (lane != nullptr) join(lane->clock, seen);
    }
  });
}

}  // namespace attnhub::emulator
