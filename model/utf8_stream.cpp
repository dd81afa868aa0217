// Incremental UTF-8 decoding with replacement, as the WHATWG decoder does it.
#include "model/utf8_stream.h"

namespace troupe {
namespace {

constexpr std::string_view replacement = "\uFFFD";

// What the bytes at the front of a text are: a character of `size` bytes, the first `size` bytes of one that is cut off
// by the end, or `size` bytes that can never become one.
enum class front : uint8_t { whole, cut, broken };
struct front_result {
  front what;
  size_t size;
};

front_result read_front(std::string_view s) {
  const auto b0 = static_cast<uint8_t>(s[0]);
  if (b0 < 0x80) return {front::whole, 1};
  size_t n = 0;
  uint8_t low = 0x80, high = 0xBF; // allowed range of the second byte
  if (b0 >= 0xC2 && b0 <= 0xDF) {
    n = 2;
  } else if (b0 >= 0xE0 && b0 <= 0xEF) {
    n = 3;
    if (b0 == 0xE0) low = 0xA0;
    if (b0 == 0xED) high = 0x9F;
  } else if (b0 >= 0xF0 && b0 <= 0xF4) {
    n = 4;
    if (b0 == 0xF0) low = 0x90;
    if (b0 == 0xF4) high = 0x8F;
  } else {
    return {front::broken, 1};
  }
  for (size_t i = 1; i < n; ++i) {
    if (i == s.size()) return {front::cut, i};
    const auto b = static_cast<uint8_t>(s[i]);
    if (b < low || b > high) return {front::broken, i};
    low = 0x80, high = 0xBF;
  }
  return {front::whole, n};
}

} // namespace

bool is_utf8(std::string_view bytes) {
  while (!bytes.empty()) {
    const auto [what, size] = read_front(bytes);
    if (what != front::whole) return false;
    bytes.remove_prefix(size);
  }
  return true;
}

void utf8_stream::push(std::string_view bytes, std::string& out) {
  // Complete the held character byte by byte; it is at most 3 bytes, so this ends soon.
  while (n_held_ != 0 && !bytes.empty()) {
    held_[n_held_] = bytes[0];
    const auto [what, size] = read_front({held_, size_t{n_held_} + 1});
    if (what == front::broken) { // the new byte is not part of it and is read again below
      out += replacement;
      n_held_ = 0;
      break;
    }
    bytes.remove_prefix(1);
    ++n_held_;
    if (what == front::whole) {
      out.append(held_, n_held_);
      n_held_ = 0;
    }
  }
  size_t good = 0; // bytes at the front that are whole characters, copied in one go
  while (good < bytes.size()) {
    const auto [what, size] = read_front(bytes.substr(good));
    if (what == front::whole) {
      good += size;
      continue;
    }
    out.append(bytes.substr(0, good));
    bytes.remove_prefix(good);
    good = 0;
    if (what == front::cut) {
      n_held_ = static_cast<uint8_t>(bytes.copy(held_, sizeof held_));
      return;
    }
    out += replacement;
    bytes.remove_prefix(size);
  }
  out.append(bytes);
}

void utf8_stream::finish(std::string& out) {
  if (n_held_ != 0) out += replacement;
  n_held_ = 0;
}

} // namespace troupe
