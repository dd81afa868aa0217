// RFC 2397 and RFC 4648; the declared type is ignored, the image decoder sniffs the real one.
#include "net/data_uri.h"

#include <fmt/format.h>

#include <array>
#include <cstdint>

namespace troupe {
namespace {

constexpr uint8_t no_digit = 255, blank = 254;

constexpr std::array<uint8_t, 256> make_digits() {
  std::array<uint8_t, 256> d{};
  for (auto& v : d) v = no_digit;
  for (int i = 0; i < 26; i++) {
    d[static_cast<size_t>('A' + i)] = static_cast<uint8_t>(i);
    d[static_cast<size_t>('a' + i)] = static_cast<uint8_t>(26 + i);
  }
  for (int i = 0; i < 10; i++) d[static_cast<size_t>('0' + i)] = static_cast<uint8_t>(52 + i);
  d['+'] = d['-'] = 62;
  d['/'] = d['_'] = 63;
  d[' '] = d['\n'] = d['\r'] = d['\t'] = blank;
  return d;
}
constexpr auto digits = make_digits();

int hex_value(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

bool starts_with_nocase(std::string_view text, std::string_view head) {
  if (text.size() < head.size()) return false;
  for (size_t i = 0; i < head.size(); i++)
    if ((text[i] >= 'A' && text[i] <= 'Z' ? text[i] + 32 : text[i]) != head[i]) return false;
  return true;
}

} // namespace

bool decode_base64(std::string_view text, std::string& bytes) {
  bytes.clear();
  bytes.reserve(text.size() / 4 * 3 + 3);
  uint32_t word = 0;
  int n = 0;
  size_t i = 0;
  for (; i < text.size() && text[i] != '='; i++) {
    const uint8_t d = digits[static_cast<unsigned char>(text[i])];
    if (d == blank) continue;
    if (d == no_digit) return false;
    word = word << 6 | d;
    if (++n == 4) {
      bytes += static_cast<char>(word >> 16);
      bytes += static_cast<char>(word >> 8);
      bytes += static_cast<char>(word);
      word = 0;
      n = 0;
    }
  }
  int n_padding = 0;
  for (; i < text.size(); i++) {
    if (digits[static_cast<unsigned char>(text[i])] == blank) continue;
    if (text[i] != '=') return false;
    n_padding++;
  }
  if (n == 1 || (n_padding > 0 && n + n_padding != 4)) return false;
  if (n >= 2) bytes += static_cast<char>(n == 2 ? word >> 4 : word >> 10);
  if (n == 3) bytes += static_cast<char>(word >> 2);
  return true;
}

bool decode_percent(std::string_view text, std::string& bytes) {
  bytes.clear();
  for (size_t i = 0; i < text.size(); i++) {
    if (text[i] != '%') {
      bytes += text[i];
      continue;
    }
    const int high = i + 2 < text.size() ? hex_value(text[i + 1]) : -1;
    const int low = i + 2 < text.size() ? hex_value(text[i + 2]) : -1;
    if (high < 0 || low < 0) return false;
    bytes += static_cast<char>(high << 4 | low);
    i += 2;
  }
  return true;
}

std::string read_image_source(std::string_view url, size_t max_bytes, std::string& bytes) {
  if (starts_with_nocase(url, "http:") || starts_with_nocase(url, "https:"))
    return "Failed to load image: fetching image URLs is off; send the image as a data: URI";
  if (!starts_with_nocase(url, "data:"))
    return "Failed to load image: expected a data: URI (file and other URLs are refused)";
  const size_t comma = url.find(',');
  if (comma == std::string_view::npos) return "Failed to load image: data: URI without a comma";
  std::string_view head = url.substr(5, comma - 5);
  while (!head.empty() && head.back() == ' ') head.remove_suffix(1);
  const std::string_view payload = url.substr(comma + 1);
  constexpr std::string_view mark = ";base64";
  const bool is_base64 = head.size() >= mark.size() && starts_with_nocase(head.substr(head.size() - mark.size()), mark);
  const bool good = is_base64 ? decode_base64(payload, bytes) : decode_percent(payload, bytes);
  if (!good) return fmt::format("Failed to load image: bad {} data", is_base64 ? "base64" : "percent-encoded");
  if (bytes.empty()) return "Failed to load image: no data";
  if (bytes.size() > max_bytes)
    return fmt::format("Failed to load image: {} bytes, the limit is {} bytes", bytes.size(), max_bytes);
  return {};
}

} // namespace troupe
