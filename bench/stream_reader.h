// What the bytes of one stream say to a load test: tokens, writes, gaps, lateness, the age of stamped tokens. No
// sockets.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

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

// Of all streams of a run.
struct load_counts {
  uint64_t tokens = 0, writes = 0, reads = 0, bytes = 0; // writes: HTTP chunks
  uint64_t odd_tokens = 0;                               // stamped streams: events that do not spell a stamp
  gap_counts gaps;                                       // between the reads of a stream that brought tokens
  gap_counts lateness;                                   // with a pace
  gap_counts latency;                                    // of stamped tokens, from the back end to here
};

// How late tokens at a known pace are: against the line of that pace through the earliest of them so far.
class pace_line {
public:
  using time = std::chrono::steady_clock::time_point;
  explicit pace_line(double per_s) : per_s_(per_s) {}
  double late_us(uint64_t token, time now); // `token`: number of the first one that has just arrived

private:
  double per_s_;
  std::optional<double> earliest_us_; // of token 0, by any token seen
};

// Reads back the stamps of `null_stamps`: a mark and seven digits, base 32, of a time in us modulo 2^35.
class stamp_reader {
public:
  using time = std::chrono::steady_clock::time_point;
  enum class state : uint8_t { odd, taken, whole };
  state take(char, time now);
  double age_us() const { return age_us_; } // of the mark when it arrived; after `whole`

private:
  int n_digits_ = -1; // -1: no mark yet
  uint64_t stamp_us_ = 0;
  time marked_at_{};
  double age_us_ = 0;
};

class stream_reader {
public:
  using time = std::chrono::steady_clock::time_point;
  // `pace_per_s`: tokens a second, 0 if unknown. `stamped`: each token is a character of a stamp.
  stream_reader(double pace_per_s, bool stamped) : line_(pace_per_s), is_paced_(pace_per_s > 0), is_stamped_(stamped) {}
  // Bytes as they come, cut anywhere. `counts` null: they are not measured, but the state goes on.
  void take(std::string_view bytes, time now, load_counts* counts);
  uint64_t n_tokens() const { return n_tokens_; }
  bool has_ended() const { return has_ended_; } // [DONE] was read

private:
  void take_event(std::string_view event, time now, load_counts*);

  pace_line line_;
  bool is_paced_, is_stamped_, has_ended_ = false;
  std::string begun_;     // an event that has not arrived whole
  char last_ = 0;         // the byte before
  size_t content_at_ = 0; // of the text's first character, from "data:"; 0: not known
  uint64_t n_tokens_ = 0;
  time previous_{};
  stamp_reader stamp_;
};

} // namespace troupe
