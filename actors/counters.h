// The numbers behind /metrics, /ready and status: atomics, each written by one actor and read by anyone. Never a lock.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace troupe {

// A Prometheus histogram: bucket i counts values <= bounds[i], the last one counts the rest.
class histogram {
public:
  explicit histogram(std::span<const double> bounds) : bounds_(bounds) {}
  void observe(double value);
  std::span<const double> bounds() const { return bounds_; }
  uint64_t count(size_t bucket) const {
    return counts_[bucket].load(std::memory_order_relaxed);
  } // bounds().size() + 1 buckets
  void clear();
  double sum() const { return sum_.load(std::memory_order_relaxed); }

private:
  std::span<const double> bounds_; // static tables of counters.cpp, api.md section 8
  std::array<std::atomic<uint64_t>, 32> counts_{};
  std::atomic<double> sum_{0};
};

// Bucket bounds of api.md section 8.
std::span<const double> ttft_bounds();
std::span<const double> itl_bounds();
std::span<const double> latency_bounds();
std::span<const double> size_bounds(); // 1-2-5 up to 1,048,576

enum class phase : uint8_t { starting, weights, warm_up, ready, restarting, draining, failed };
const char* name(phase);

struct counters {
  std::atomic<phase> now{phase::starting};
  std::atomic<double> progress{0};      // of the phase, 0..1
  std::atomic<int64_t> last_step_us{0}; // steady clock, microseconds: progress of the engine loop
  std::atomic<int64_t> step_sent_us{0}; // the same clock: when the step in the ring was sent; 0: none is
  // scheduler
  std::atomic<int64_t> running{0}, waiting{0}, steps{0}, rows{0}, refused{0};
  std::atomic<int64_t> paused{0}; // turns, now
  std::atomic<int64_t> preemptions{0};
  // Prompt tokens looked up in the prefix cache and found, each choice for itself and once; of the hits, by tier.
  std::atomic<int64_t> cache_queries{0}, cache_hits{0};
  std::atomic<int64_t> cache_hits_device{0}, cache_hits_memory{0}, cache_hits_disk{0};
  // What sequences found, generated tokens too, that came back after a parking or a restart, by tier.
  std::atomic<int64_t> cache_returns_device{0}, cache_returns_memory{0}, cache_returns_disk{0};
  std::atomic<int64_t> turn_us{0}; // how long a turn runs, on the average; 0: none has ended
  // prepare: turns whose prompt is not ready
  std::atomic<int64_t> preparing{0};
  // requests: every turn that began ends as one of these. `refused`: before it ran, for whatever reason.
  std::atomic<int64_t> turns{0}, ended_stop{0}, ended_length{0}, ended_abort{0}, ended_error{0}, ended_refused{0};
  // Drafts by their place in the block, from 0: verified in a round of a sequence, and found right.
  static constexpr size_t n_draft_places = 16;
  std::atomic<int64_t> draft_rounds{0};
  std::atomic<bool> weak_drafts{false}; // see draft_belief
  std::array<std::atomic<int64_t>, n_draft_places> drafts_at{}, accepted_drafts_at{};
  // kv_cache
  std::atomic<int64_t> blocks{0}, blocks_used{0}, blocks_cached{0}, snapshots{0};
  std::atomic<int64_t> blocks_in_memory{0}, disk_bytes{0}; // the tiers' contents, on each rank
  // tier_disk, of all ranks together
  std::atomic<int64_t> disk_writes{0}, disk_bytes_written{0}, disk_write_errors{0};
  std::atomic<int64_t> disk_reads{0}, disk_bytes_read{0}, disk_read_errors{0};
  // engram_fetch
  std::atomic<int64_t> engram_rows{0}, engram_bytes{0};
  // fan_out
  // As in usage, each turn once: the prompt of several choices is one, what lies behind a stop string is not said.
  std::atomic<int64_t> prompt_tokens{0}, generated_tokens{0}, cached_tokens{0};
  std::atomic<int64_t> parse_errors{0}, stray_markers{0}, sink_closed{0};
  std::atomic<int64_t> sink_full{0}; // pauses so far
  // ring: what an older epoch sent; restarts of its actors (and of prepare's desk), and turns that went on behind one
  std::atomic<int64_t> dropped_messages{0}, restarts{0}, resumed_turns{0};
  histogram ttft{ttft_bounds()}, inter_token{itl_bounds()}, e2e{latency_bounds()}, queue_time{latency_bounds()},
      prefill_time{latency_bounds()}, decode_time{latency_bounds()}, prompt_size{size_bounds()},
      generation_size{size_bounds()}, iteration_tokens{size_bounds()};
  histogram time_per_token{itl_bounds()}, inference_time{latency_bounds()}, longest_choice{size_bounds()},
      asked_tokens{size_bounds()}, asked_choices{size_bounds()};
  // ranks, at their start: kernels that the self-check took out of use, bit r: those of rate K = r / 2 (parked_kernels)
  std::atomic<uint32_t> parked_linears{0}, parked_experts{0};
  std::atomic<bool> parked_prompts{false}; // the kernels of prompts went as one: those of decode serve them
  std::atomic<bool> parked_attention{false}, parked_prompt_attention{false}; // those for rows 512 wide
  // rank 0: decode steps and rounds of guesses replayed from graphs, and those launched though graphs were captured
  std::atomic<int64_t> graph_replays{0}, graph_misses{0};
  void forget_traffic(); // everything but the phase, gauges and sizes: the warm-up is not traffic
};

// "linear EXL3 mul1 K=3", for each that is parked.
std::vector<std::string> parked_kernels(const counters&);
// What works and is slower than it should be, a sentence each.
std::vector<std::string> alarms(const counters&);

} // namespace troupe
