// Requests by endpoint and status, requests in flight: atomics, written by sessions, read by /metrics and /load.
#pragma once

#include "actors/counters.h"
#include "net/routes.h"

#include <array>
#include <atomic>
#include <cstdint>

namespace troupe {

struct http_counts {
  static constexpr size_t n_endpoints = static_cast<size_t>(endpoint::page) + 1;
  static constexpr std::array<int, 16> statuses = {200, 204, 400, 401, 404, 405, 408, 413,
                                                   414, 415, 429, 431, 499, 500, 501, 503};
  std::array<std::array<std::atomic<int64_t>, statuses.size()>, n_endpoints> requests{};
  std::atomic<int64_t> in_flight{0};        // turns and questions being worked on
  std::atomic<int64_t> connections{0};      // open
  std::atomic<int64_t> connections_over{0}; // of them, those beyond the limit, being told so
  std::atomic<int64_t> turned_away{0};      // connections beyond the limit so far
  std::atomic<int64_t> stalled{0};          // streams ended because the client did not read
  histogram duration{latency_bounds()};

  void add(endpoint e, int status) {
    for (size_t i = 0; i < statuses.size(); i++)
      if (statuses[i] == status) requests[static_cast<size_t>(e)][i].fetch_add(1, std::memory_order_relaxed);
  }
};

} // namespace troupe
