// The load side of serve_bench: N streams on one epoll thread, events counted as they arrive. Nothing is kept of them.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace troupe {

// Times in microseconds as counts in buckets 5 % apart: percentiles of millions of gaps in a few KiB.
class gap_counts {
public:
  void add(double us);
  double at(double part) const; // 0.5: the median
  double most() const { return most_; }
  uint64_t total() const { return total_; }

private:
  std::array<uint64_t, 512> counts_{};
  uint64_t total_ = 0;
  double most_ = 0;
};

struct load_result {
  double seconds = 0; // measured window
  uint64_t events = 0, reads = 0;
  gap_counts gaps;     // between the reads of a stream that brought events: how late an event can have been
  gap_counts lateness; // with a pace: arrival against first arrival + k / pace
  uint64_t failed = 0; // streams that ended with something else than [DONE]
};

struct load_plan {
  int port = 0, streams = 1;
  std::string body;        // of each POST to /v1/chat/completions
  double warm_seconds = 0; // not measured
  double seconds = 0;      // measured; 0: until every stream has ended, from the first event on
  double pace_per_s = 0;   // events a second of each stream, if known
};
load_result run_load(const load_plan&);

// One request on a connection of its own; the answer's body. Throws std::runtime_error unless the status is 200.
std::string ask(int port, std::string_view method, std::string_view path, std::string_view body);
double cpu_seconds(int pid); // user and system time of a process so far

// `troupe serve ARGUMENTS` as a child on a free port; the constructor returns when /ready says so.
class child_server {
public:
  child_server(const std::string& program, std::vector<std::string> arguments);
  ~child_server(); // SIGTERM, then waits
  child_server(const child_server&) = delete;
  child_server& operator=(const child_server&) = delete;
  int port = 0, pid = 0;
  double seconds_to_ready = 0;
};

} // namespace troupe
