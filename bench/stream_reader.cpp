// An event ends with two line feeds; chunk framing never makes two in a row.
#include "bench/stream_reader.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace troupe {
namespace {

constexpr double step = 1.05; // of gap_counts
constexpr std::string_view content = "\"content\":\"";
constexpr uint64_t stamp_range_us = uint64_t{1} << 35;
constexpr int stamp_digits = 7;

double microseconds(std::chrono::steady_clock::duration d) {
  return std::chrono::duration<double, std::micro>(d).count();
}

int to_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  return c >= 'a' && c <= 'v' ? c - 'a' + 10 : -1;
}

} // namespace

void gap_counts::add(double us) {
  const double i = us > 1 ? std::log(us) / std::log(step) : 0;
  counts_[std::min(counts_.size() - 1, static_cast<size_t>(i))]++;
  total_++;
  most_ = std::max(most_, us);
}

double gap_counts::at(double part) const {
  const auto want = static_cast<uint64_t>(part * static_cast<double>(total_));
  uint64_t seen = 0;
  for (size_t i = 0; i < counts_.size(); i++)
    if ((seen += counts_[i]) > want) return std::min(most_, std::pow(step, static_cast<double>(i + 1)));
  return most_;
}

double pace_line::late_us(uint64_t token, time now) {
  const double start_us = microseconds(now.time_since_epoch()) - static_cast<double>(token) * 1e6 / per_s_;
  earliest_us_ = earliest_us_ ? std::min(*earliest_us_, start_us) : start_us;
  return start_us - *earliest_us_;
}

stamp_reader::state stamp_reader::take(char c, time now) {
  if (c == '@') {
    const bool is_cut = n_digits_ >= 0 && n_digits_ < stamp_digits; // the one before never ended
    n_digits_ = 0;
    stamp_us_ = 0;
    marked_at_ = now;
    return is_cut ? state::odd : state::taken;
  }
  const int digit = to_digit(c);
  if (digit < 0 || n_digits_ < 0 || n_digits_ == stamp_digits) return state::odd;
  stamp_us_ = stamp_us_ * 32 + static_cast<uint64_t>(digit);
  if (++n_digits_ < stamp_digits) return state::taken;
  const double arrived_us = microseconds(marked_at_.time_since_epoch());
  age_us_ = std::fmod(arrived_us - static_cast<double>(stamp_us_), static_cast<double>(stamp_range_us));
  return state::whole;
}

void stream_reader::take(std::string_view bytes, time now, load_counts* counts) {
  if (bytes.empty()) return;
  const uint64_t before = n_tokens_;
  size_t from = 0;
  for (size_t at = 0; (at = bytes.find('\n', at)) != std::string_view::npos; at++) {
    if ((at > 0 ? bytes[at - 1] : last_) != '\n') continue;
    const auto piece = bytes.substr(from, at + 1 - from);
    from = at + 1;
    if (begun_.empty()) {
      take_event(piece, now, counts);
    } else {
      begun_ += piece;
      take_event(begun_, now, counts);
      begun_.clear();
    }
  }
  begun_ += bytes.substr(from);
  last_ = bytes.back();
  const uint64_t found = n_tokens_ - before;
  if (counts) {
    counts->bytes += bytes.size();
    counts->reads += found > 0;
    if (found > 0 && before > 0) counts->gaps.add(microseconds(now - previous_));
  }
  if (found == 0) return;
  previous_ = now;
  if (!is_paced_) return;
  const double late_us = line_.late_us(before, now);
  if (counts) counts->lateness.add(late_us);
}

void stream_reader::take_event(std::string_view event, time now, load_counts* counts) {
  const bool begins_chunk = !event.starts_with("data:");
  const size_t head = event.starts_with("\r\n") ? event.find('\n', 2) + 1 : 0; // of the chunk: "\r\n", its size, "\r\n"
  const auto data = event.substr(std::min(head, event.size()));
  if (content_at_ == 0 || data.size() <= content_at_ || !data.substr(0, content_at_).ends_with(content)) {
    const size_t found = data.find(content);
    if (found == std::string_view::npos) { // the last event, or none of a token's
      has_ended_ = has_ended_ || data.find("[DONE]") != std::string_view::npos;
      return;
    }
    if (!data.starts_with("data:")) return; // behind the answer's head: the role
    content_at_ = found + content.size();
  }
  if (data[content_at_] == '"') return; // the role's
  n_tokens_++;
  if (counts) {
    counts->tokens++;
    counts->writes += begins_chunk;
  }
  if (!is_stamped_) return;
  const bool is_one = data.size() > content_at_ + 1 && data[content_at_ + 1] == '"';
  const auto state = is_one ? stamp_.take(data[content_at_], now) : stamp_reader::state::odd;
  if (!counts) return;
  counts->odd_tokens += state == stamp_reader::state::odd;
  if (state == stamp_reader::state::whole) counts->latency.add(stamp_.age_us());
}

} // namespace troupe
