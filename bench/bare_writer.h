// The floor that a server is compared with: one thread, epoll, send of ready bytes. No parsing, no queue, no engine.
#pragma once

#include <cstddef>

namespace troupe {

struct bare_plan {
  int streams = 1;
  size_t event_bytes = 0;   // of one event in its HTTP chunk; not below what the framing takes
  int events_per_write = 1; // at most, without a pace
  double pace_per_s = 0;    // of each stream, an event each in its own write, all streams one after the other, stamped
                            // as null_stamps are; 0: as much as the sockets take
};

// A child process that serves `streams` connections on a free port; any first bytes from a client start its stream.
class bare_writer {
public:
  explicit bare_writer(const bare_plan&);
  ~bare_writer(); // ends it
  bare_writer(const bare_writer&) = delete;
  bare_writer& operator=(const bare_writer&) = delete;
  int port = 0, pid = 0;
};

} // namespace troupe
