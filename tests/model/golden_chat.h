// Reads tests/golden/chat for the tests of tokenizer, chat and parser.
#pragma once

#include "model/tokenizer.h"

#include <doctest/doctest.h>
#include <fstream>
#include <iterator>
#include <memory>
#include <simdjson.h>
#include <string>
#include <vector>
#include <zlib.h>

namespace troupe::golden_chat {

inline std::string path(const std::string& file) { return TROUPE_SOURCE_DIR "/tests/golden/chat/" + file; }

inline std::string read_file(const std::string& file) {
  std::ifstream in(file, std::ios::binary);
  REQUIRE_MESSAGE(in, file);
  return {std::istreambuf_iterator<char>(in), {}};
}

inline std::string gunzip(const std::string& file) {
  gzFile in = gzopen(file.c_str(), "rb");
  REQUIRE_MESSAGE(in != nullptr, file);
  std::string all;
  std::vector<char> part(1 << 20);
  for (int n; (n = gzread(in, part.data(), static_cast<unsigned>(part.size()))) > 0;)
    all.append(part.data(), static_cast<size_t>(n));
  gzclose(in);
  return all;
}

// The tokenizer that encodes like the released one; read once a test program.
inline const std::shared_ptr<const tokenizer>& real_tokenizer() {
  static const auto tok = tokenizer::parse(gunzip(path("tokenizer_v41_equiv.json.gz")), "tokenizer_v41_equiv.json");
  return tok;
}

inline const std::shared_ptr<const tokenizer>& tiny_tokenizer() {
  static const auto tok = tokenizer::load(TROUPE_SOURCE_DIR "/etc/models/tiny/tokenizer.json");
  return tok;
}

// A JSON file and the parser that owns its text.
struct document {
  simdjson::dom::parser parser;
  simdjson::dom::element root;
  explicit document(const std::string& file) {
    const auto error = parser.load(path(file)).get(root);
    REQUIRE_MESSAGE(error == simdjson::SUCCESS, file);
  }
};

inline std::string text(simdjson::dom::element e) { return std::string(e.get_string().value()); }

// The elements by value: a simdjson array must outlive the walk over it.
inline std::vector<simdjson::dom::element> list(simdjson::dom::element e) {
  const simdjson::dom::array a = e.get_array().value();
  return {a.begin(), a.end()};
}

inline std::vector<simdjson::dom::element> cases(const document& doc) { return list(doc.root["cases"].value()); }

inline std::vector<int32_t> ids(simdjson::dom::element e) {
  std::vector<int32_t> out;
  for (const auto v : list(e)) out.push_back(static_cast<int32_t>(v.get_int64().value()));
  return out;
}

} // namespace troupe::golden_chat
