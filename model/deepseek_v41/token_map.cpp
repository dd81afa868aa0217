// Normalisation through utf8proc's decomposition and composition, one code point at a time in between.
#include "model/deepseek_v41/token_map.h"

#include "model/tokenizer.h"

#include <algorithm>
#include <stdexcept>
#include <unordered_map>
#include <utf8proc.h>
#include <utility>

namespace troupe {
namespace {

using code_points = std::vector<utf8proc_int32_t>;

std::string to_utf8(const code_points& in) {
  std::string out;
  utf8proc_uint8_t bytes[4];
  for (const utf8proc_int32_t c : in)
    out.append(reinterpret_cast<const char*>(bytes), static_cast<size_t>(utf8proc_encode_char(c, bytes)));
  return out;
}

// NFKC and then NFD of the result. The decompositions of compatibility characters are final, so composing in between
// changes nothing that the second decomposition does not undo: NFKD gives the same code points.
code_points decompose(std::string_view text) {
  code_points out(text.size() * 4 + 32);
  for (;;) {
    const auto n = utf8proc_decompose(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                                      static_cast<utf8proc_ssize_t>(text.size()), out.data(),
                                      static_cast<utf8proc_ssize_t>(out.size()),
                                      static_cast<utf8proc_option_t>(UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT));
    if (n < 0) throw std::runtime_error(std::string("token text: ") + utf8proc_errmsg(n));
    const bool fits = static_cast<size_t>(n) <= out.size();
    out.resize(static_cast<size_t>(n));
    if (fits) return out;
  }
}

bool is_mark(utf8proc_int32_t c) {
  const auto category = utf8proc_category(c);
  return category == UTF8PROC_CATEGORY_MN || category == UTF8PROC_CATEGORY_MC || category == UTF8PROC_CATEGORY_ME;
}

bool is_white_space(utf8proc_int32_t c) { // the Unicode property White_Space
  return (c >= 0x9 && c <= 0xD) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) ||
         c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

} // namespace

std::string normalise_token_text(std::string_view text) {
  code_points out;
  bool in_spaces = false;
  for (utf8proc_int32_t c : decompose(text)) {
    if (is_mark(c)) continue;
    c = utf8proc_tolower(c);
    const bool is_space = c == ' ' || c == '\t' || c == '\r' || c == '\n';
    if (is_space && in_spaces) continue;
    in_spaces = is_space;
    out.push_back(is_space ? ' ' : c);
  }
  if (out == code_points{' '}) return " ";
  const auto first = std::find_if_not(out.begin(), out.end(), is_white_space);
  const auto last = std::find_if_not(out.rbegin(), std::make_reverse_iterator(first), is_white_space).base();
  std::string result = to_utf8({first, last});
  // The spec keeps a lone space by way of U+E000, so a U+E000 of the text itself becomes a space as well.
  for (size_t at; (at = result.find("\uE000")) != result.npos;) result.replace(at, 3, " ");
  return result;
}

std::vector<int32_t> compressed_token_map(const tokenizer& tok) {
  std::vector<int32_t> map;
  map.reserve(static_cast<size_t>(tok.size()));
  std::unordered_map<std::string, int32_t> ids;
  for (int32_t id = 0; id < tok.size(); ++id) {
    const std::string text = tok.decode({&id, 1}, false);
    std::string key;
    if (text.find("\uFFFD") != text.npos) {
      key = tok.raw(id);
    } else {
      key = normalise_token_text(text);
      if (key.empty()) key = text;
    }
    map.push_back(ids.try_emplace(std::move(key), static_cast<int32_t>(ids.size())).first->second);
  }
  return map;
}

} // namespace troupe
