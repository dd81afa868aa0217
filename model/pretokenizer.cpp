// PCRE2 behind the splits. The patterns were written for Oniguruma, so what the two read differently is translated or
// refused.
#define PCRE2_CODE_UNIT_WIDTH 8
#include "model/pretokenizer.h"

#include <cctype>
#include <cstdint>
#include <pcre2.h>
#include <stdexcept>
#include <utility>

namespace troupe {
namespace {

constexpr size_t max_pattern_bytes = 4096;
// Far above what the released patterns need (a few steps a character), low enough that a hostile one fails in a second.
constexpr uint32_t match_limit = 20'000'000;

struct code_free {
  void operator()(pcre2_code* c) const { pcre2_code_free(c); }
};
struct data_free {
  void operator()(pcre2_match_data* d) const { pcre2_match_data_free(d); }
};
struct compile_context_free {
  void operator()(pcre2_compile_context* c) const { pcre2_compile_context_free(c); }
};
struct match_context_free {
  void operator()(pcre2_match_context* c) const { pcre2_match_context_free(c); }
};
using code_ptr = std::unique_ptr<pcre2_code, code_free>;
using data_ptr = std::unique_ptr<pcre2_match_data, data_free>;

std::string message_of(int error) {
  PCRE2_UCHAR text[160] = {};
  pcre2_get_error_message(error, text, sizeof text);
  return reinterpret_cast<const char*>(text);
}

// White space is the Unicode property in Oniguruma; PCRE2's \s also takes U+180E. Escapes that both read alike pass.
std::string translate(const std::string& pattern) {
  if (pattern.size() > max_pattern_bytes)
    throw std::runtime_error("a pattern of " + std::to_string(pattern.size()) + " bytes, at most " +
                             std::to_string(max_pattern_bytes) + " are accepted");
  std::string out;
  for (size_t i = 0; i < pattern.size(); ++i) {
    if (pattern[i] == '(' && pattern.compare(i, 2, "(*") == 0) throw std::runtime_error("the construct (* is refused");
    if (pattern[i] != '\\' || i + 1 == pattern.size()) {
      out += pattern[i];
      continue;
    }
    const char c = pattern[++i];
    if (c == 's' || c == 'S') {
      out += c == 's' ? "\\p{White_Space}" : "\\P{White_Space}";
      continue;
    }
    constexpr std::string_view same = "pPdDrnt";
    if (std::isalnum(static_cast<unsigned char>(c)) && same.find(c) == std::string_view::npos)
      throw std::runtime_error(std::string("the escape \\") + c + " is not implemented");
    out += '\\';
    out += c;
  }
  return out;
}

code_ptr compile(const std::string& pattern) {
  const std::string text = translate(pattern);
  std::unique_ptr<pcre2_compile_context, compile_context_free> context{pcre2_compile_context_create(nullptr)};
  pcre2_set_parens_nest_limit(context.get(), 16);
  int error = 0;
  PCRE2_SIZE at = 0;
  code_ptr code{pcre2_compile(reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), PCRE2_UTF | PCRE2_UCP, &error,
                              &at, context.get())};
  if (!code) throw std::runtime_error(message_of(error) + " at offset " + std::to_string(at));
  pcre2_jit_compile(code.get(), PCRE2_JIT_COMPLETE); // without a JIT the interpreter gives the same pieces
  return code;
}

} // namespace

struct pretokenizer::split {
  code_ptr code;
};

struct pretokenizer::cutter::scratch {
  std::vector<data_ptr> data; // one per split: an outer match is still being walked while an inner one runs
  std::unique_ptr<pcre2_match_context, match_context_free> context{pcre2_match_context_create(nullptr)};
};

pretokenizer::pretokenizer(std::span<const std::string> patterns) {
  for (size_t i = 0; i < patterns.size(); ++i) {
    try {
      splits_.push_back({compile(patterns[i])});
    } catch (const std::runtime_error& e) { throw std::runtime_error("split " + std::to_string(i) + ": " + e.what()); }
  }
}

pretokenizer::~pretokenizer() = default;
pretokenizer::pretokenizer(pretokenizer&&) noexcept = default;

pretokenizer::cutter::cutter(const pretokenizer& rules) : rules_(&rules), scratch_(std::make_unique<scratch>()) {
  for (const auto& s : rules.splits_)
    scratch_->data.emplace_back(pcre2_match_data_create_from_pattern(s.code.get(), nullptr));
  pcre2_set_match_limit(scratch_->context.get(), match_limit);
}

pretokenizer::cutter::~cutter() = default;
pretokenizer::cutter::cutter(cutter&&) noexcept = default;

void pretokenizer::cutter::cut(std::string_view text, std::vector<std::string_view>& pieces) { cut(text, 0, pieces); }

void pretokenizer::cutter::cut(std::string_view text, size_t level, std::vector<std::string_view>& pieces) {
  if (text.empty()) return;
  if (level == rules_->splits_.size()) {
    pieces.push_back(text);
    return;
  }
  const pcre2_code* code = rules_->splits_[level].code.get();
  pcre2_match_data* data = scratch_->data[level].get();
  size_t gap = 0, from = 0; // `gap`: where the text that no match took begins
  while (from < text.size()) {
    int rc = PCRE2_ERROR_JIT_STACKLIMIT;
    for (const uint32_t option : {uint32_t{0}, uint32_t{PCRE2_NO_JIT}})
      if (rc == PCRE2_ERROR_JIT_STACKLIMIT)
        rc = pcre2_match(code, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), from,
                         PCRE2_NO_UTF_CHECK | option, data, scratch_->context.get());
    if (rc == PCRE2_ERROR_NOMATCH) break;
    if (rc < 0) throw std::runtime_error("tokenizer: split " + std::to_string(level) + ": " + message_of(rc));
    const PCRE2_SIZE* where = pcre2_get_ovector_pointer(data);
    const size_t begin = where[0], end = where[1];
    if (end <= begin) { // an empty match makes no piece
      from = end + 1;
      while (from < text.size() && (static_cast<uint8_t>(text[from]) & 0xC0) == 0x80) ++from;
      continue;
    }
    cut(text.substr(gap, begin - gap), level + 1, pieces);
    cut(text.substr(begin, end - begin), level + 1, pieces);
    gap = from = end;
  }
  cut(text.substr(gap), level + 1, pieces);
}

} // namespace troupe
