// Every setting of the process, as values. actors/config.cpp holds the one table: names, defaults, ranges, help,
// origin.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace troupe {

struct settings {
  // serving
  std::string host = "127.0.0.1";
  int32_t port = 8888; // 0: any free port, printed
  std::string model;   // folder; empty: the tiny model shipped in the tree
  std::vector<std::string> served_names;
  std::vector<std::string> api_keys; // never logged, never shown by config show
  std::string backend = "auto";      // auto | host | cuda | null
  int32_t ranks = 1;
  int32_t threads = 0; // host compute threads of all ranks together; 0 in the file means the cores
  int32_t io_threads = 1;
  int32_t cuda_graph_rows = 64; // decode steps of up to so many rows are captured at the start; 0: none

  // limits
  int32_t max_running = 64;     // sequences in one step
  int32_t max_queue = 1024;     // waiting turns
  int32_t max_queue_wait_s = 0; // of a turn, before it starts; 0: any time
  int32_t max_connections = 8192;
  int64_t max_context = 0;    // 0: what the model says
  int32_t chunk_tokens = 512; // rows of one step
  int32_t max_gap_ms = 250;   // between tokens of a stream while prompts are read
  bool overcommit = true;     // start before all of max_tokens has room; park turns when blocks run out
  int64_t kv_memory_bytes = int64_t{2} << 30;
  int64_t snapshot_memory_bytes = int64_t{512} << 20; // prefix cache: window state, of each rank
  int64_t snapshot_interval = 4096;                   // tokens between snapshots of that kind; 0: none of it
  int64_t host_cache_bytes = int64_t{512} << 20;      // prefix cache: blocks that left the device, of each rank
  std::string disk_cache_dir;                         // empty: no disk tier
  int64_t disk_cache_bytes = int64_t{16} << 30;       // of each rank
  int64_t disk_cache_min_tokens = 512;                // of a prefix that is worth writing
  int64_t disk_write_bytes_per_hour = int64_t{64} << 30;
  int32_t max_n = 128, max_images = 16;
  int64_t max_body_bytes = int64_t{256} << 20;
  int64_t max_image_bytes = int64_t{20} << 20;
  int64_t max_bodies_bytes = int64_t{512} << 20; // of all requests being read or prepared
  int64_t outbox_bytes = 256 << 10;              // of one stream, before its sequence pauses
  int32_t read_timeout_s = 60, send_timeout_s = 120, drain_timeout_s = 60, request_timeout_s = 0;
  int32_t half_close_grace_s = 0; // for clients that end their sending side and still read
  int32_t ping_interval_s = 15;
  bool clamp_max_tokens = false;

  // chat
  bool default_thinking = true;
  std::string effort_table = "official";    // official | vllm0909
  std::string text_specials = "parse";      // parse | plain
  std::string image_marker_text = "reject"; // reject | quote
  std::string reasoning_field = "both";     // both | reasoning_content | reasoning
  bool response_format_hint = true;
  bool suppress_reserved = true;
  bool enable_task_field = false, strict_openai = false, enable_render = true;
  std::string error_style = "vllm"; // vllm | openai
  std::vector<std::string> allowed_origins;

  // engine
  std::string prefill = "exact"; // exact | tail
  int64_t tail_tokens = 128;
  std::string spec = "dspark";          // dspark | none
  int32_t draft_tokens = 16;            // verified in one step and sequence at most; the model's block is the limit
  std::string draft_depth = "adaptive"; // adaptive | fixed
  int64_t engram_cache_bytes = int64_t{64} << 20; // tables up to this size are held in RAM

  // null backend: operators' own load tests
  double null_tokens_per_s = 50; // of each stream; 0: as fast as it goes
  bool null_stamps = false;      // its tokens say when they were made
  // logging
  std::string log_level = "info";
};

} // namespace troupe
