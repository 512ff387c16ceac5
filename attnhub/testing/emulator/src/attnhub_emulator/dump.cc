// What an error says: which thread, at which line, and where every other thread stood.
#include <dlfcn.h>

#include <algorithm>
#include <cstdio>

#include "engine.h"

namespace attnhub::emulator {

// Python replaces @{offset} by file and line.
std::string site_text(const void* site) {
  Dl_info info;
  if (site == nullptr || dladdr(site, &info) == 0) return "before its first wrapper call";
  char text[64];
  const auto offset = static_cast<const char*>(site) - static_cast<const char*>(info.dli_fbase);
  snprintf(text, sizeof(text), "at @{%#tx}", offset - 1);  // inside the call, not after it
  return text;
}

std::string where(const Cta& cta) {
  char text[64];
  snprintf(text, sizeof(text), "CTA (%u, %u, %u)", cta.index.x, cta.index.y, cta.index.z);
  return text;
}

std::string agent_name(u32 agent) {
  const Config& config = engine->config;
  std::string text;
  u32 rank;
  if (agent < num_fibers()) {
    rank = agent / config.num_threads;
    text = "thread " + std::to_string(agent % config.num_threads);
  } else if (agent < num_fibers() + config.cluster) {
    rank = agent - num_fibers();
    text = "tma_load";
  } else {
    const u32 warpgroup = agent - wgmma_agent(0, 0), num_warpgroups = config.num_threads / 128;
    rank = warpgroup / num_warpgroups;
    text = "wgmma of warpgroup " + std::to_string(warpgroup % num_warpgroups);
  }
  return config.cluster == 1 ? text : text + " of cluster rank " + std::to_string(rank);
}

namespace {

// "threads 0-31, 40" of a sorted list.
std::string ranges(const std::vector<u32>& threads) {
  std::string text = threads.size() == 1 ? "thread " : "threads ";
  for (size_t i = 0; i < threads.size();) {
    size_t last = i;
    while (last + 1 < threads.size() && threads[last + 1] == threads[last] + 1) ++last;
    text += (i ? ", " : "") + std::to_string(threads[i]);
    if (last > i) text += "-" + std::to_string(threads[last]);
    i = last + 1;
  }
  return text;
}

std::string dump_cta(const Cta& cta) {
  std::string text;
  std::vector<std::pair<std::string, std::vector<u32>>> groups;
  for (const Fiber* fiber : cta.fibers) {
    std::string state = fiber->has_failed ? "failed" : fiber->is_done ? "exited" : "can run";
    if (fiber->waits_on != nullptr) {
      char wait[128];
      snprintf(wait, sizeof(wait), fiber->waits_on, fiber->wait_operand);
      state = std::string("waits on ") + wait;
    }
    if (!fiber->is_done) state += ", " + site_text(fiber->site);
    auto same = [&](auto& group) { return group.first == state; };
    auto found = std::find_if(groups.begin(), groups.end(), same);
    if (found == groups.end()) found = groups.insert(found, {state, {}});
    found->second.push_back(fiber->thread);
  }
  text += where(cta) + ":\n";
  for (const auto& [state, threads] : groups) text += "  " + ranges(threads) + ": " + state + "\n";
  for (const auto& [address, mbarrier] : cta.mbarriers) {
    if (mbarrier.waiting.empty()) continue;
    char state[160];
    snprintf(state, sizeof(state),
             "  mbarrier at shared offset %u: phase %u, %d of %d arrivals to come, %lld bytes\n",
             address - kSmemBase, mbarrier.phase, mbarrier.num_pending, mbarrier.num_arrivals,
             mbarrier.num_bytes);
    text += state;
  }
  for (int id = 0; id < 16; ++id) {
    const Barrier& barrier = cta.barriers[id];
    if (barrier.num_arrived > 0) {
      text += "  barrier " + std::to_string(id) + ": " + std::to_string(barrier.num_arrived) +
              " of " + std::to_string(barrier.expected) + " threads have come\n";
    }
  }
  return text;
}

}  // namespace

std::string Engine::dump() const {
  std::string text;
  for (const auto& cluster : clusters_) {
    for (const auto& cta : cluster->ctas) text += dump_cta(*cta);
  }
  return text;
}

}  // namespace attnhub::emulator
