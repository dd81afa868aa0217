// The escape scan copies runs of plain bytes at once: nearly all text of a stream needs no escape.
#include "net/json_text.h"

#include <array>
#include <cmath>

namespace troupe {
namespace {

constexpr std::array<bool, 256> make_plain() {
  std::array<bool, 256> plain{};
  for (size_t c = 0x20; c < 256; c++) plain[c] = c != '"' && c != '\\';
  return plain;
}
constexpr auto plain = make_plain();

void append_escape(std::string& out, char c) {
  static constexpr char hex[] = "0123456789abcdef";
  switch (c) {
  case '"': out += "\\\""; break;
  case '\\': out += "\\\\"; break;
  case '\n': out += "\\n"; break;
  case '\r': out += "\\r"; break;
  case '\t': out += "\\t"; break;
  case '\b': out += "\\b"; break;
  case '\f': out += "\\f"; break;
  default:
    out += "\\u00";
    out += hex[c >> 4];
    out += hex[c & 15];
  }
}

} // namespace

void append_json_string(std::string& out, std::string_view text) {
  out += '"';
  size_t from = 0;
  for (size_t i = 0; i < text.size(); i++) {
    if (plain[static_cast<unsigned char>(text[i])]) continue;
    out.append(text, from, i - from);
    append_escape(out, text[i]);
    from = i + 1;
  }
  out.append(text, from);
  out += '"';
}

void append_json_float(std::string& out, float value) {
  if (!std::isfinite(value)) {
    out += "-9999.0";
    return;
  }
  char digits[32];
  const auto r = std::to_chars(digits, digits + sizeof digits, value);
  out.append(digits, r.ptr);
}

std::string quote(std::string_view text, size_t limit) {
  bool cut = false;
  if (text.size() > limit) {
    while (limit > 0 && (static_cast<unsigned char>(text[limit]) & 0xC0) == 0x80) limit--;
    text = text.substr(0, limit);
    cut = true;
  }
  std::string out;
  for (const char c : text) out += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
  if (cut) out += "...";
  return out;
}

} // namespace troupe
