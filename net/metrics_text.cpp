// Families are built at each scrape from the atomics and handed to prometheus-cpp's text writer.
#include "net/metrics_text.h"

#include <prometheus/metric_family.h>
#include <prometheus/text_serializer.h>

#include <unistd.h>

#include <cstdio>
#include <limits>
#include <utility>
#include <vector>

namespace troupe {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;

using labels = std::vector<ClientMetric::Label>;

class family_list {
public:
  explicit family_list(const std::string& model) {
    if (!model.empty()) base_.push_back({"model_name", model});
    base_.push_back({"engine", "0"});
  }
  void counter(const char* name, const char* help, double value, const labels& extra = {}) {
    auto& m = add(name, help, MetricType::Counter, extra);
    m.counter.value = value;
  }
  void gauge(const char* name, const char* help, double value, const labels& extra = {}) {
    auto& m = add(name, help, MetricType::Gauge, extra);
    m.gauge.value = value;
  }
  void distribution(const char* name, const char* help, const histogram& h) {
    auto& m = add(name, help, MetricType::Histogram, {});
    uint64_t total = 0;
    for (size_t i = 0; i <= h.bounds().size(); i++) {
      total += h.count(i);
      const double bound = i < h.bounds().size() ? h.bounds()[i] : std::numeric_limits<double>::infinity();
      m.histogram.bucket.push_back({total, bound});
    }
    m.histogram.sample_count = total;
    m.histogram.sample_sum = h.sum();
  }
  std::string text() const { return prometheus::TextSerializer().Serialize(families_); }

private:
  ClientMetric& add(const char* name, const char* help, MetricType type, const labels& extra) {
    if (families_.empty() || families_.back().name != name) families_.push_back({name, help, type, {}});
    auto& m = families_.back().metric.emplace_back();
    m.label = base_;
    m.label.insert(m.label.end(), extra.begin(), extra.end());
    return m;
  }
  labels base_;
  std::vector<MetricFamily> families_;
};

void add_drafts(family_list& out, const counters& n) {
  double drafted = 0, accepted = 0;
  for (const auto& d : n.drafts_at) drafted += static_cast<double>(d);
  for (const auto& a : n.accepted_drafts_at) accepted += static_cast<double>(a);
  out.counter("vllm:spec_decode_num_drafts_total", "Runs of drafts verified.", static_cast<double>(n.draft_rounds));
  out.counter("vllm:spec_decode_num_draft_tokens_total", "Draft tokens verified.", drafted);
  out.counter("vllm:spec_decode_num_accepted_tokens_total", "Draft tokens found right.", accepted);
  for (size_t j = 0; j < counters::n_draft_places && n.drafts_at[j] > 0; ++j)
    out.counter("vllm:spec_decode_num_accepted_tokens_per_pos_total", "Draft tokens found right, by place in the run.",
                static_cast<double>(n.accepted_drafts_at[j]), {{"position", std::to_string(j)}});
  for (size_t j = 0; j < counters::n_draft_places && n.drafts_at[j] > 0; ++j)
    out.counter("troupe_draft_tokens_per_pos_total", "Draft tokens verified, by place in the run.",
                static_cast<double>(n.drafts_at[j]), {{"position", std::to_string(j)}});
}

// Where the prefix cache is and what its disk does.
void add_tiers(family_list& out, const counters& n) {
  const auto from = [&](const char* tier, int64_t value) {
    out.counter("troupe_prefix_cache_hit_tokens_total", "Prompt tokens found in the prefix cache, by where they were.",
                static_cast<double>(value), {{"tier", tier}});
  };
  from("device", n.cache_hits_device);
  from("memory", n.cache_hits_memory);
  from("disk", n.cache_hits_disk);
  const auto back = [&](const char* tier, int64_t value) {
    out.counter("troupe_prefix_cache_returned_tokens_total",
                "Tokens of turns that came back after a parking or a restart, found in the prefix cache, by tier.",
                static_cast<double>(value), {{"tier", tier}});
  };
  back("device", n.cache_returns_device);
  back("memory", n.cache_returns_memory);
  back("disk", n.cache_returns_disk);
  const char* blocks = "KV blocks of the prefix cache that no sequence uses, by tier.";
  out.gauge("troupe_prefix_cache_blocks", blocks, static_cast<double>(n.blocks_cached), {{"tier", "device"}});
  out.gauge("troupe_prefix_cache_blocks", blocks, static_cast<double>(n.blocks_in_memory), {{"tier", "memory"}});
  out.gauge("troupe_prefix_cache_snapshots", "Snapshots of window state in memory.", static_cast<double>(n.snapshots));
  out.gauge("troupe_disk_cache_bytes", "Bytes of the prefix cache on disk, on each rank.",
            static_cast<double>(n.disk_bytes));
  const auto disk = [&](const char* name, const char* help, int64_t value) {
    out.counter(name, help, static_cast<double>(value));
  };
  disk("troupe_disk_cache_writes_total", "Entries written, of all ranks.", n.disk_writes);
  disk("troupe_disk_cache_written_bytes_total", "Their bytes.", n.disk_bytes_written);
  disk("troupe_disk_cache_write_errors_total", "Entries that could not be written.", n.disk_write_errors);
  disk("troupe_disk_cache_reads_total", "Entries read, of all ranks.", n.disk_reads);
  disk("troupe_disk_cache_read_bytes_total", "Their bytes.", n.disk_bytes_read);
  disk("troupe_disk_cache_read_errors_total", "Entries that were broken or could not be read.", n.disk_read_errors);
}

void add_engine(family_list& out, const counters& n, int64_t block_tokens) {
  out.gauge("vllm:num_requests_running", "Sequences in the running steps.", static_cast<double>(n.running));
  out.gauge("vllm:num_requests_waiting", "Turns waiting for a place.", static_cast<double>(n.waiting));
  out.gauge("troupe_num_requests_preparing", "Turns whose prompt is being made.", static_cast<double>(n.preparing));
  out.gauge("vllm:num_requests_waiting_by_reason", "Turns waiting, by what they wait for.",
            static_cast<double>(n.waiting), {{"reason", "capacity"}});
  const double blocks = static_cast<double>(n.blocks);
  out.gauge("vllm:kv_cache_usage_perc", "KV blocks in use, 1 is all.",
            blocks > 0 ? static_cast<double>(n.blocks_used) / blocks : 0);
  out.counter("vllm:prefix_cache_queries_total", "Prompt tokens looked up in the prefix cache.",
              static_cast<double>(n.cache_queries));
  out.counter("vllm:prefix_cache_hits_total", "Prompt tokens found in the prefix cache.",
              static_cast<double>(n.cache_hits));
  add_tiers(out, n);
  out.counter("vllm:num_preemptions_total", "Sequences put back into the queue.", static_cast<double>(n.preemptions));
  out.counter("vllm:prompt_tokens_total", "Prompt tokens computed or found.", static_cast<double>(n.prompt_tokens));
  out.counter("vllm:generation_tokens_total", "Tokens generated.", static_cast<double>(n.generated_tokens));
  out.counter("vllm:prompt_tokens_cached_total", "Prompt tokens taken from the prefix cache.",
              static_cast<double>(n.cached_tokens));
  add_drafts(out, n);
  const char* ends = "Turns by how they ended.";
  out.counter("vllm:request_success_total", ends, static_cast<double>(n.ended_stop), {{"finished_reason", "stop"}});
  out.counter("vllm:request_success_total", ends, static_cast<double>(n.ended_length), {{"finished_reason", "length"}});
  out.counter("vllm:request_success_total", ends, static_cast<double>(n.ended_abort), {{"finished_reason", "abort"}});
  out.counter("vllm:request_success_total", ends, static_cast<double>(n.ended_error), {{"finished_reason", "error"}});
  out.distribution("vllm:time_to_first_token_seconds", "From arrival to the first token.", n.ttft);
  out.distribution("vllm:inter_token_latency_seconds", "Between tokens of a sequence.", n.inter_token);
  out.distribution("vllm:request_time_per_output_token_seconds", "Of a turn, between tokens on the average.",
                   n.time_per_token);
  out.distribution("vllm:request_inference_time_seconds", "Prefill and decode of a turn.", n.inference_time);
  out.distribution("vllm:e2e_request_latency_seconds", "From arrival to the end.", n.e2e);
  out.distribution("vllm:request_queue_time_seconds", "Waiting for a place.", n.queue_time);
  out.distribution("vllm:request_prefill_time_seconds", "From the first chunk to the first token.", n.prefill_time);
  out.distribution("vllm:request_decode_time_seconds", "From the first token to the end.", n.decode_time);
  out.distribution("vllm:request_prompt_tokens", "Prompt tokens of a turn.", n.prompt_size);
  out.distribution("vllm:request_generation_tokens", "Generated tokens of a turn.", n.generation_size);
  out.distribution("vllm:request_max_num_generation_tokens", "Tokens of a turn's longest choice.", n.longest_choice);
  out.distribution("vllm:request_params_max_tokens", "max_tokens of turns that set it.", n.asked_tokens);
  out.distribution("vllm:request_params_n", "n of a turn.", n.asked_choices);
  out.gauge("vllm:cache_config_info", "Shape of the KV cache; the value is 1.", 1,
            {{"block_size", std::to_string(block_tokens)}, {"num_gpu_blocks", std::to_string(n.blocks.load())}});
  out.distribution("vllm:iteration_tokens_total", "Rows of a step.", n.iteration_tokens);
}

void add_own(family_list& out, const counters& n, const http_counts& http) {
  for (const std::string& kernel : parked_kernels(n))
    out.gauge("troupe_kernel_parked", "1: the self-check found the kernel wrong, another form takes its place.", 1,
              {{"kernel", kernel}});
  out.counter("troupe_graph_replays_total", "Decode steps and rounds of drafts replayed from a CUDA graph.",
              static_cast<double>(n.graph_replays));
  out.counter("troupe_graph_misses_total", "Those launched kernel by kernel although graphs were captured.",
              static_cast<double>(n.graph_misses));
  out.gauge("troupe_weak_drafts", "1: drafts are right less than half as often as the drafter believes.",
            n.weak_drafts ? 1 : 0);
  out.counter("troupe_steps_total", "Steps run.", static_cast<double>(n.steps));
  out.counter("troupe_rows_total", "Rows run.", static_cast<double>(n.rows));
  out.counter("troupe_turns_total", "Turns that began.", static_cast<double>(n.turns));
  out.counter("troupe_turns_refused_total", "Of them, refused before they ran.", static_cast<double>(n.ended_refused));
  out.counter("troupe_queue_rejects_total", "Turns refused because the queue was full.",
              static_cast<double>(n.refused));
  out.gauge("troupe_streams_paused", "Streams that wait for their client to read.", static_cast<double>(n.paused));
  out.counter("troupe_stream_pauses_total", "Times that a stream was paused because its client read too slowly.",
              static_cast<double>(n.sink_full));
  out.counter("troupe_stream_stalls_total", "Streams ended at the send deadline.", static_cast<double>(http.stalled));
  out.counter("troupe_sink_closed_total", "Pushes that found the client gone.", static_cast<double>(n.sink_closed));
  out.counter("troupe_tool_parse_errors_total", "Malformed tool calls in output.", static_cast<double>(n.parse_errors));
  out.counter("troupe_stray_markers_total", "Markers in output where none belongs.",
              static_cast<double>(n.stray_markers));
  out.counter("troupe_engram_rows_total", "Side-table rows read.", static_cast<double>(n.engram_rows));
  out.counter("troupe_engram_bytes_total", "Side-table bytes read.", static_cast<double>(n.engram_bytes));
  out.counter("troupe_restarts_total",
              "Actors that died and were replaced: those of the ring, and the desk of prepare.",
              static_cast<double>(n.restarts));
  out.counter("troupe_resumed_turns_total", "Turns that went on behind a restart.",
              static_cast<double>(n.resumed_turns));
  out.counter("troupe_dropped_messages_total", "Ring messages of an older epoch.",
              static_cast<double>(n.dropped_messages));
  out.gauge("troupe_kv_blocks", "KV blocks there are.", static_cast<double>(n.blocks));
  out.gauge("troupe_kv_blocks_used", "KV blocks in use.", static_cast<double>(n.blocks_used));
}

void add_http(family_list& out, const http_counts& http) {
  for (size_t e = 0; e < http_counts::n_endpoints; e++)
    for (size_t s = 0; s < http_counts::statuses.size(); s++)
      if (const auto n = http.requests[e][s].load(std::memory_order_relaxed))
        out.counter("http_requests_total", "Requests answered.", static_cast<double>(n),
                    {{"handler", handler_name(static_cast<endpoint>(e))},
                     {"status", std::to_string(http_counts::statuses[s])}});
  out.distribution("http_request_duration_seconds", "From the head of a request to the last byte of its answer.",
                   http.duration);
  out.gauge("troupe_connections", "Open connections.", static_cast<double>(http.connections));
  out.counter("troupe_connections_refused_total", "Connections beyond max_connections.",
              static_cast<double>(http.turned_away));
  out.gauge("troupe_http_in_flight", "Requests being worked on.", static_cast<double>(http.in_flight));
}

void add_process(family_list& out) {
  unsigned long pages = 0;
  if (std::FILE* f = std::fopen("/proc/self/statm", "r")) {
    unsigned long total = 0;
    if (std::fscanf(f, "%lu %lu", &total, &pages) != 2) pages = 0;
    std::fclose(f);
  }
  out.gauge("process_resident_memory_bytes", "Resident memory.",
            static_cast<double>(pages) * static_cast<double>(::sysconf(_SC_PAGESIZE)));
}

} // namespace

std::string metrics_text(const counters& n, const http_counts& http, int64_t bodies_bytes, const std::string& model,
                         int64_t block_tokens) {
  family_list out(model);
  add_engine(out, n, block_tokens);
  add_own(out, n, http);
  add_http(out, http);
  out.gauge("troupe_bodies_bytes", "Of request bodies being read or prepared.", static_cast<double>(bodies_bytes));
  add_process(out);
  return out.text();
}

} // namespace troupe
