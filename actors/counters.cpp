// Histograms and their bucket bounds (api.md section 8), names of the phases.
#include "actors/counters.h"

#include <algorithm>

namespace troupe {

namespace {

constexpr double ttft_table[] = {0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75,
                                 1,     2.5,   5,    7.5,  10,   20,   40,   80,  160,  640, 2560};
constexpr double itl_table[] = {0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5,
                                0.75, 1,     2.5,  5,     7.5, 10,   20,  40,  80};
constexpr double latency_table[] = {0.3, 0.5, 0.8, 1,  1.5, 2,   2.5, 5,   10,   15,  20,
                                    30,  40,  50,  60, 120, 240, 480, 960, 1920, 7680};
constexpr double size_table[] = {1,    2,    5,     10,    20,    50,     100,    200,    500,     1000,
                                 2000, 5000, 10000, 20000, 50000, 100000, 200000, 500000, 1000000, 1048576};

} // namespace

std::span<const double> ttft_bounds() { return ttft_table; }
std::span<const double> itl_bounds() { return itl_table; }
std::span<const double> latency_bounds() { return latency_table; }
std::span<const double> size_bounds() { return size_table; }

void histogram::observe(double value) {
  const auto bucket = std::lower_bound(bounds_.begin(), bounds_.end(), value) - bounds_.begin();
  counts_[static_cast<size_t>(bucket)].fetch_add(1, std::memory_order_relaxed);
  sum_.fetch_add(value, std::memory_order_relaxed);
}

void histogram::clear() {
  for (auto& c : counts_) c.store(0, std::memory_order_relaxed);
  sum_.store(0, std::memory_order_relaxed);
}

const char* name(phase p) {
  switch (p) {
  case phase::starting: return "starting";
  case phase::weights: return "weights";
  case phase::warm_up: return "warm-up";
  case phase::ready: return "ready";
  case phase::restarting: return "restarting";
  case phase::draining: return "draining";
  case phase::failed: return "failed";
  }
  return "unknown";
}

void counters::forget_traffic() {
  for (auto* n : {&steps,         &rows,          &refused,      &prompt_tokens, &generated_tokens,
                  &cached_tokens, &cache_queries, &cache_hits,   &preemptions,   &ended_stop,
                  &ended_length,  &ended_abort,   &ended_error,  &engram_rows,   &engram_bytes,
                  &parse_errors,  &stray_markers, &sink_full,    &sink_closed,   &dropped_messages,
                  &draft_rounds,  &turns,         &ended_refused})
    n->store(0, std::memory_order_relaxed);
  for (auto* n : {&cache_hits_device, &cache_hits_memory, &cache_hits_disk, &cache_returns_device,
                  &cache_returns_memory, &cache_returns_disk, &disk_writes, &disk_bytes_written, &disk_write_errors,
                  &disk_reads, &disk_bytes_read, &disk_read_errors})
    n->store(0, std::memory_order_relaxed);
  for (auto* places : {&drafts_at, &accepted_drafts_at})
    for (auto& n : *places) n.store(0, std::memory_order_relaxed);
  for (auto* h : {&ttft, &inter_token, &e2e, &queue_time, &prefill_time, &decode_time, &prompt_size, &generation_size,
                  &iteration_tokens})
    h->clear();
  for (auto* h : {&time_per_token, &inference_time, &longest_choice, &asked_tokens, &asked_choices}) h->clear();
}

std::vector<std::string> parked_kernels(const counters& n) {
  std::vector<std::string> names;
  const auto add = [&](const char* what, uint32_t rates) {
    for (uint32_t r = 0; r < 32; ++r)
      if ((rates >> r & 1U) != 0)
        names.push_back(std::string(what) + " EXL3 mul1 K=" + std::to_string(r / 2) + (r % 2 != 0 ? ".5" : ""));
  };
  add("linear", n.parked_linears);
  add("experts", n.parked_experts);
  if (n.parked_prompts) names.emplace_back("products of prompts");
  if (n.parked_attention) names.emplace_back("attention of 512 dims");
  if (n.parked_prompt_attention) names.emplace_back("attention of 512 dims, prompts");
  return names;
}

std::vector<std::string> alarms(const counters& n) {
  std::vector<std::string> out;
  if (const int64_t misses = n.graph_misses; misses > 0)
    out.push_back(std::to_string(misses) + " steps ran outside of the CUDA graphs that were captured");
  if (n.weak_drafts) out.emplace_back("drafts are right less than half as often as the drafter believes");
  return out;
}

} // namespace troupe
