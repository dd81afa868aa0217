// The load side of serve_bench: N streams on one epoll thread, events counted as they arrive. Nothing is kept of them.
#pragma once

#include "bench/stream_reader.h"

#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace troupe {

struct load_result {
  double seconds = 0;     // measured window
  double cpu_seconds = 0; // of the process load_plan::pid in it
  load_counts counts;
  uint64_t failed = 0; // streams that ended with something else than [DONE]
};

struct load_plan {
  int port = 0, pid = 0; // pid 0: its time is not looked at
  int streams = 1;
  std::string body; // of each POST to /v1/chat/completions
  // Measured: from the moment when all streams have had a token and `warm_seconds` have passed, until `seconds` later
  // or the first stream ends. seconds 0: from the first token of any stream until all have ended.
  double warm_seconds = 0, seconds = 0;
  double pace_per_s = 0; // tokens a second of each stream, if known
  bool stamped = false;  // the tokens are stamps (null_stamps)
};
// What run_load throws when a stream ended before all of them had begun.
struct load_too_short : std::runtime_error {
  using std::runtime_error::runtime_error;
};
load_result run_load(const load_plan&);

// One request on a connection of its own; the answer's body. Throws std::runtime_error unless the status is 200.
std::string ask(int port, std::string_view method, std::string_view path, std::string_view body);
double cpu_seconds(int pid);    // user and system time of a process so far
int listen_anywhere(int& port); // on 127.0.0.1; the socket

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
