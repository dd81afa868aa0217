// Added tokens move into the vocabulary at their own ids, so that ids behind them can follow.
#include "model/deepseek_v41/synth_tokenizer.h"

#include "model/tokenizer.h"

#include <fmt/format.h>
#include <simdjson.h>

#include <fstream>
#include <iterator>
#include <stdexcept>

namespace troupe::deepseek_v41 {
namespace {

using simdjson::dom::element;
using simdjson::dom::object;

// "a": 1, "b": 2 of an object, without its braces.
std::string members(object o) {
  const std::string text = simdjson::minify(o);
  return text.substr(1, text.size() - 2);
}

std::string quoted(std::string_view key) { return fmt::format("\"{}\"", key); } // keys of the format need no escapes

std::string filled_vocabulary(object vocab, simdjson::dom::array added, int64_t n_known, int64_t n_tokens) {
  std::string text = members(vocab);
  for (const element e : added) {
    const element content = e["content"];
    std::string_view spelling = content;
    element already;
    if (vocab[spelling].get(already) == simdjson::SUCCESS) continue;
    text += fmt::format(",{}:{}", simdjson::minify(content), int64_t{e["id"]});
  }
  for (int64_t id = n_known; id < n_tokens; ++id) text += fmt::format(",\"<{}>\":{}", id, id);
  return text;
}

} // namespace

std::string filled_tokenizer(const std::string& path, int64_t n_tokens) {
  std::ifstream in(path, std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(in), {}};
  if (!in) throw std::runtime_error(path + ": expected a tokenizer.json, found none that can be read");
  const int64_t n_known = tokenizer::parse(text, path)->size(); // checks all that is read below
  if (n_known > n_tokens)
    throw std::runtime_error(
        fmt::format("{}: expected at most {} tokens, the vocabulary of the model, found {}", path, n_tokens, n_known));
  if (n_known == n_tokens) return text;
  simdjson::dom::parser parser;
  const simdjson::padded_string padded(text);
  const object top = parser.parse(padded);
  const simdjson::dom::array added = top["added_tokens"];
  std::string out;
  for (const auto [key, value] : top) {
    out += (out.empty() ? "{" : ",\n") + quoted(key) + ':';
    if (key != "model") {
      out += simdjson::minify(value);
      continue;
    }
    std::string model;
    for (const auto [name, part] : object(value))
      model += (model.empty() ? "" : ",\n") + quoted(name) + ':' +
               (name == "vocab" ? '{' + filled_vocabulary(part, added, n_known, n_tokens) + '}'
                                : std::string(simdjson::minify(part)));
    out += '{' + model + '}';
  }
  out += "}\n";
  tokenizer::parse(out, path + " with tokens of its own for the other ids");
  return out;
}

} // namespace troupe::deepseek_v41
