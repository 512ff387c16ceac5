// The plan kernel: cuts the work of a batch evenly over the workers of one or two persistent
// kernels, from lengths that lie on the device. docs/kernels/scheduler.md has the model.
#pragma once

#include "attnhub/attention/cuts.cuh"
#include "attnhub/attention/request.cuh"
#include "attnhub/attention/schedule.cuh"
#include "attnhub/attention/tile_costs.cuh"
#include "attnhub/common/cta_scan.cuh"
#include "attnhub/common/types.cuh"
#include "attnhub/ptx/barrier.cuh"
#include "attnhub/ptx/grid.cuh"
#include "attnhub/ptx/memory.cuh"
#include "attnhub/ptx/shuffle.cuh"
#include "attnhub/ptx/thread.cuh"

namespace attnhub::plan {

constexpr int kMaxSections = 2;
constexpr int kMaxThreads = 1024;
constexpr i32 kMaxInShared = 10'000;  // requests whose sums fit into the 99 KB of any GPU

// Lengths of a batch as the caller has them.
struct Inputs {
  const i32* qo_indptr;  // [batch + 1]
  const i32* kv_indptr;  // [batch + 1]: of pages, or of keys
  const i32* lengths;    // [batch]: keys of the last page, or of all where page_size is 0; null: 1
  i32 batch, page_size;
};

// What a section's CTA writes: see Schedule.
struct Outputs {
  WorkerRange* ranges;
  i32* next_requests;
  i32* first_slots;  // null where not is_fixed
  i64* in_run;       // [batch]: see Batch; not used where shared memory does
};

struct Params {
  Inputs inputs;
  Request* requests;  // [batch]
  i32* counters;      // [num_counters], of all sections
  i32 num_counters, num_sections;
  Outputs outputs[kMaxSections];
  Section sections[kMaxSections];
};

// Where the queries and keys of a request begin, and those of the one before end.
struct Begin {
  i32 qo, kv;
};

ATTNHUB_DEVICE Begin load_begin(const Inputs& from, i32 r) {
  return {ptx::ld_global(from.qo_indptr + r), ptx::ld_global(from.kv_indptr + r)};
}

ATTNHUB_DEVICE i32 load_length(const Inputs& from, i32 r) {
  return from.lengths != nullptr ? ptx::ld_global(from.lengths + r) : 1;
}

// NOTE: nobody has looked at these numbers; a negative length would reach unsigned arithmetic.
ATTNHUB_DEVICE Request make_request(const Inputs& from, Begin begin, Begin end, i32 length) {
  const i32 pages = end.kv - begin.kv;
  const i32 kv_len = max((pages - 1) * from.page_size + length, 0);
  return {begin.qo, max(end.qo - begin.qo, 0), begin.kv, pages > 0 ? kv_len : 0};
}

ATTNHUB_DEVICE Request load_request(const Inputs& from, i32 r) {
  const Begin begin = load_begin(from, r), end = load_begin(from, r + 1);
  return make_request(from, begin, end, load_length(from, r));
}

// The last i below `count` whose value is at most `bound`. Values never fall; that of 0 is.
template <class Value>
ATTNHUB_DEVICE i32 last_at_most(i64 bound, i32 count, const Value& value) {
  constexpr i32 kParts = 4;  // of what is left in each step: three loads that do not wait
  i32 found = 0;
  for (u32 rest = count; rest > 1;) {
    rest = (rest + kParts - 1) / kParts;
    const i32 begin = found;
#pragma unroll
    for (i32 part = 1; part < kParts; ++part) {
      const i32 i = min(begin + part * i32(rest), count - 1);
      if (value(i) <= bound) found = i;
    }
  }
  return found;
}

struct SmemPlan {
  i64 warp_costs[kMaxThreads / ptx::kWarpSize];
  i64 warp_slots[kMaxThreads / ptx::kWarpSize];
  i32 warp_taken[kMaxThreads / ptx::kWarpSize];
  i32 next_taken[kMaxThreads];  // the first request after a run that the section takes
  i64 before_run[kMaxThreads];
  i64 in_run[kMaxInShared + kMaxThreads];  // of smaller batches there may be less
};

// What a Cutter asks for. Requests are in runs, one for each thread: the cost before a request is
// that before its run, and that before it in its run. The latter is 0 if each thread has one.
struct Batch {
  const Inputs& inputs;
  const Outputs& outputs;
  u32 smem;
  i32 size, run_shift;  // a run has 1 << run_shift requests
  i64 total;

  template <class T, int kCount>
  ATTNHUB_DEVICE u32 at(T (SmemPlan::*member)[kCount], i32 i) const {
    return smem + ptx::offset_of(member) + i * u32(sizeof(T));
  }
  ATTNHUB_DEVICE i64 before_run(i32 run) const {
    return ptx::ld_shared<i64>(at(&SmemPlan::before_run, run));
  }
  // NOTE: a gap after each run keeps the lanes of a warp in different banks.
  ATTNHUB_DEVICE u32 in_run_at(i32 r) const {
    return at(&SmemPlan::in_run, r + (r >> run_shift));
  }
  ATTNHUB_DEVICE i64 in_run(i32 r) const {
    if (run_shift == 0) return 0;
    if (size <= kMaxInShared) return ptx::ld_shared<i64>(in_run_at(r));
    return ptx::ld_global(outputs.in_run + r);
  }
  ATTNHUB_DEVICE void set_in_run(i32 r, i64 cost) const {
    if (run_shift == 0) return;
    if (size <= kMaxInShared) {
      ptx::st_shared(in_run_at(r), cost);
    } else {
      ptx::st_global(outputs.in_run + r, cost);
    }
  }
  ATTNHUB_DEVICE i64 cost_before(i32 r) const { return before_run(r >> run_shift) + in_run(r); }
  ATTNHUB_DEVICE i32 find(i64 cost) const {
    const i32 num_runs = ((size - 1) >> run_shift) + 1;
    const i32 run = last_at_most(cost, num_runs, [&](i32 i) { return before_run(i); });
    if (run_shift == 0) return run;
    const i32 begin = run << run_shift, count = min(1 << run_shift, size - begin);
    const i64 rest = cost - before_run(run);
    return begin + last_at_most(rest, count, [&](i32 i) { return in_run(begin + i); });
  }
  ATTNHUB_DEVICE i32 next_request(i32 r) const {
    const bool ends_run = ((r + 1) & ((1 << run_shift) - 1)) == 0;
    if (ends_run) return ptx::ld_shared<i32>(at(&SmemPlan::next_taken, r >> run_shift));
    return ptx::ld_global(outputs.next_requests + r);
  }
  ATTNHUB_DEVICE Request request(i32 r) const { return load_request(inputs, r); }
  ATTNHUB_DEVICE i32 first_slot(i32 r) const { return ptx::ld_global(outputs.first_slots + r); }
};

// The CTA of one section.
class SectionPlan {
 public:
  ATTNHUB_DEVICE SectionPlan(const Params& p, i32 section)
      : section_(p.sections[section]),
        outputs_(p.outputs[section]),
        // NOTE: by a shuffle, or the compiler would work out the address anew for each access.
        batch_{p.inputs, outputs_, ptx::shuffle(ptx::dynamic_smem(), 0), p.inputs.batch, 0, 0} {
    while (blockDim.x << batch_.run_shift < u32(batch_.size)) ++batch_.run_shift;
    begin_ = min(i32(threadIdx.x << batch_.run_shift), batch_.size);
    end_ = min(begin_ + (1 << batch_.run_shift), batch_.size);
  }

  ATTNHUB_DEVICE void run() {
    Run run = sum();
    const RunningSum costs(run.cost, batch_.at(&SmemPlan::warp_costs, 0));
    const NextValue taken(run.first_taken, batch_.at(&SmemPlan::warp_taken, 0));
    RunningSum slots;
    if (section_.is_fixed) slots = {run.slots, batch_.at(&SmemPlan::warp_slots, 0)};
    ptx::sync_threads();
    const i64 before = costs.before(batch_.total);
    ptx::st_shared(batch_.at(&SmemPlan::before_run, threadIdx.x), before);
    i32 next = taken.after();
    if (next < 0) next = batch_.size;
    ptx::st_shared(batch_.at(&SmemPlan::next_taken, threadIdx.x), next);
    write_next(run.next_known, end_, next);
    if (section_.is_fixed) {
      i64 ignored;
      give_slots(slots.before(ignored));
    }
    const Cutter<Batch> cutter(batch_, section_);
    ptx::sync_threads();
    write_ranges(cutter);
  }

 private:
  // What a thread finds out about its requests.
  struct Run {
    i64 cost, slots;
    i32 first_taken;  // by the section; or -1
    i32 next_known;   // before this one all have what comes next
  };

  ATTNHUB_DEVICE Run sum() const {
    Run run = {0, 0, -1, begin_};
    if (begin_ >= end_) return run;
    const Inputs& inputs = batch_.inputs;
    Begin at = load_begin(inputs, begin_);
#pragma unroll 1
    for (i32 r = begin_; r < end_; ++r) {
      const Begin next = load_begin(inputs, r + 1);
      const Request request = make_request(inputs, at, next, load_length(inputs, r));
      at = next;
      batch_.set_in_run(r, run.cost);
      const bool is_taken = section_.takes(request);
      if (is_taken) {
        if (run.first_taken < 0) run.first_taken = r;
        write_next(run.next_known, r, r);
        run.cost += request_cost(request, section_);
      }
      if (section_.is_fixed) {
        const i32 slots = is_taken ? slots_of(request) : 0;
        ptx::st_global(outputs_.first_slots + r, slots);
        run.slots += slots;
      }
    }
    return run;
  }

  // What comes next after the requests begin to end - 1. Moves begin to end.
  ATTNHUB_DEVICE void write_next(i32& begin, i32 end, i32 next) const {
#pragma unroll 1
    for (; begin < end; ++begin) ptx::st_global(outputs_.next_requests + begin, next);
  }

  // What the pieces of a request that is taken need, where tiles are cut at fixed keys.
  ATTNHUB_DEVICE i32 slots_of(const Request& request) const {
    if (section_.tile_slots(request) == 1) return 0;
    constexpr i64 kMany = (1 << 30) - 1;  // so many fit nowhere
    const i64 tiles = i64(section_.num_heads) * section_.num_tiles(request);
    return i32(min(min(tiles, kMany) * section_.tile_slots(request), kMany));
  }

  // The first slot of each request in the place of how many it needs.
  ATTNHUB_DEVICE void give_slots(i64 before) const {
#pragma unroll 1
    for (i32 r = begin_; r < end_; ++r) {
      const i32 own = batch_.first_slot(r);
      const bool fits = own > 0 && before + own <= section_.num_slots;
      ptx::st_global(outputs_.first_slots + r, fits ? i32(before) : -1);
      before += own;
    }
  }

  ATTNHUB_DEVICE void write_ranges(const Cutter<Batch>& cutter) const {
    // Of a warp: where the range of a lane ends is found by the next one.
    constexpr i32 kRanges = ptx::kWarpSize - 1;
    const i32 num_workers = section_.num_workers, step = ptx::num_warps() * kRanges;
    for (i32 first = ptx::warp_idx() * kRanges; first < num_workers; first += step) {
      const i32 worker = min(first + ptx::lane_idx(), num_workers);
      const PlacedCut placed = cutter.cut(worker);
      const auto cut = bit_cast<Vec<i64, 2>>(placed.cut);
      const Vec<i64, 2> end = {ptx::shuffle_down(cut[0], 1), ptx::shuffle_down(cut[1], 1)};
      const i32 end_pieces = ptx::shuffle_down(placed.num_pieces, 1);
      if (ptx::lane_idx() == kRanges || worker == num_workers) continue;
      const Vec<i32, 4> rest = {placed.first_slot, placed.num_pieces, placed.next_request,
                                end_pieces};
      WorkerRange* range = outputs_.ranges + worker;
      ptx::st_global(&range->begin, placed.cut);
      ptx::st_global(&range->end, bit_cast<Cut>(end));
      ptx::st_global(&range->first, placed.request);
      ptx::st_global(reinterpret_cast<Vec<i32, 4>*>(&range->first_slot), rest);
    }
  }

  const Section& section_;
  const Outputs& outputs_;
  Batch batch_;
  i32 begin_, end_;  // the run of this thread
};

// What needs no sums, by the CTAs after those of the sections.
ATTNHUB_DEVICE void write_requests(const Params& p) {
  const i32 first = (blockIdx.x - p.num_sections) * blockDim.x + threadIdx.x;
  const i32 step = (gridDim.x - p.num_sections) * blockDim.x;
  for (i32 r = first; r < p.inputs.batch; r += step) {
    ptx::st_global(p.requests + r, load_request(p.inputs, r));
  }
  for (i32 i = first; i < p.num_counters; i += step) ptx::st_global(p.counters + i, 0);
}

// Grid: a CTA for each section, then one or more for the rest; of any number of warps.
ATTNHUB_DEVICE void plan(const Params& p) {
  ptx::grid_wait();
  ptx::grid_launch_dependents();
  if (i32(blockIdx.x) < p.num_sections) {
    SectionPlan(p, blockIdx.x).run();
  } else {
    write_requests(p);
  }
}

}  // namespace attnhub::plan
