// The listener: binds before anything slow happens, answers "loading" until a runtime is attached, serves until
// stopped. Owns the network threads. Spec: api.md section 0.
#pragma once

#include "actors/counters.h"
#include "actors/settings.h"
#include "net/engine_port.h"

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

namespace troupe {

class server {
public:
  // Listens at once. Throws std::system_error naming host and port (in use, no right, no such address).
  server(const settings&, std::shared_ptr<counters> numbers, std::string version);
  ~server(); // stop(0)
  server(const server&) = delete;
  server& operator=(const server&) = delete;

  uint16_t port() const;
  std::string url() const; // "http://127.0.0.1:8888"
  // From now on requests reach the engine, once counters say ready.
  void attach(std::shared_ptr<const engine_port> port);
  void begin_drain(); // new work is refused with 503, /ready says draining
  // No new connections; waits for answers being written until the deadline, then closes what is left and drops the
  // engine. False: something was cut short.
  bool stop(std::chrono::milliseconds deadline);

private:
  struct impl;
  std::unique_ptr<impl> impl_;
};

} // namespace troupe
