// The bench's own reckoning: it must not flatter or slander what it measures.
#include "bench/stream_reader.h"

#include <doctest/doctest.h>

#include <string>

using namespace troupe;

namespace {

using time_point = stream_reader::time;

time_point at_us(int64_t us) { return time_point(std::chrono::microseconds(us)); }

std::string event(std::string_view text) {
  return R"(data: {"id":"chatcmpl-1","choices":[{"index":0,"delta":{"content":")" + std::string(text) +
         R"("},"finish_reason":null}]})" + "\n\n";
}

std::string chunk(const std::string& bytes) {
  char size[20];
  std::snprintf(size, sizeof size, "%zx\r\n", bytes.size());
  return size + bytes + "\r\n";
}

const std::string head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";

std::string role() {
  return R"(data: {"id":"chatcmpl-1","choices":[{"index":0,"delta":{"role":"assistant","content":""}}]})"
         "\n\n";
}

} // namespace

TEST_CASE("stream_reader: a stream cut anywhere has the same tokens, writes and end") {
  const std::string all = head + chunk(role() + event(" a")) + chunk(event(" b") + event(" c")) + chunk(event(" d")) +
                          chunk("data: [DONE]\n\n") + "0\r\n\r\n";
  for (size_t cut = 0; cut <= all.size(); cut++) {
    stream_reader reader(0, false);
    load_counts counts;
    reader.take(std::string_view(all).substr(0, cut), at_us(10), &counts);
    reader.take(std::string_view(all).substr(cut), at_us(20), &counts);
    CHECK(reader.n_tokens() == 4);
    CHECK(counts.tokens == 4);
    CHECK(counts.writes == 2); // the first token shares its write with the role
    CHECK(counts.bytes == all.size());
    CHECK(reader.has_ended());
  }
}

TEST_CASE("stream_reader: lateness is against the pace, also when the first token comes with the role") {
  stream_reader reader(1000, false);
  load_counts counts;
  reader.take(head + chunk(role() + event(" a")), at_us(5'000'000), &counts);
  CHECK(counts.lateness.most() == 0);
  reader.take(chunk(event(" b")), at_us(5'001'000), &counts);
  CHECK(counts.lateness.most() == doctest::Approx(0));
  reader.take(chunk(event(" c")), at_us(5'002'300), &counts);
  CHECK(counts.lateness.most() == doctest::Approx(300));
  reader.take(chunk(event(" d") + event(" e")), at_us(5'004'100), &counts); // d was due at 5,003,000
  CHECK(counts.lateness.most() == doctest::Approx(1100));
  CHECK(counts.lateness.total() == 4);
  CHECK(counts.gaps.total() == 3);
}

TEST_CASE("pace_line: a late first token does not make the others early") {
  pace_line line(1000);
  CHECK(line.late_us(0, at_us(10'900)) == 0); // in truth 900 late
  CHECK(line.late_us(1, at_us(11'000)) == 0);
  CHECK(line.late_us(2, at_us(12'250)) == doctest::Approx(250));
}

TEST_CASE("stream_reader: the age of a stamped token is from its stamp to the arrival of its mark") {
  stream_reader reader(0, true);
  load_counts counts;
  reader.take(head + chunk(role()), at_us(0), &counts);
  int64_t now = (int64_t{1} << 35) * 3 + 1250;         // stamps are modulo 2^35 us
  for (const char c : std::string_view("@00000v8@")) { // 1000 us
    reader.take(chunk(event({&c, 1})), at_us(now), &counts);
    now += 1000;
  }
  CHECK(counts.latency.total() == 1);
  CHECK(counts.latency.most() == doctest::Approx(250));
  CHECK(counts.odd_tokens == 0);
  CHECK(counts.tokens == 9);
}

TEST_CASE("stream_reader: events that merge or lose tokens of a stamp are seen") {
  for (const auto* text : {"0", "@0"}) {
    stream_reader reader(0, true);
    load_counts counts;
    for (const auto* piece : {"@", "0", "0", "0"}) reader.take(chunk(event(piece)), at_us(1), &counts);
    reader.take(chunk(event(text)), at_us(1), &counts);
    reader.take(chunk(event("@")), at_us(1), &counts); // three digits are missing
    CHECK(counts.odd_tokens >= 1);
    CHECK(counts.latency.total() == 0);
  }
}
