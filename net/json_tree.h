// JSON text as a tree that keeps what a chat needs: key order and the spelling of numbers. Read with simdjson.
// Rules (api.md section 0): UTF-8 only, a BOM is skipped, duplicate keys: last value at the first position, NaN and
// Infinity are errors, depth at most 256, a lone surrogate escape is an error.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace troupe {

enum class json_kind : uint8_t { null, boolean, number, string, array, object };
const char* name(json_kind); // "null", "boolean", ...
// Values of one document: above every prompt of token ids that fits a context, and a bound on what a body can cost.
inline constexpr size_t max_json_values = 2'000'000;

// Views point into the document that made the value.
struct json_value {
  json_kind kind = json_kind::null;
  std::string_view text;              // string: unescaped; number, boolean: as written; else empty
  std::vector<std::string_view> keys; // object: keys[i] belongs to items[i]
  std::vector<json_value> items;      // array, object

  bool is(json_kind k) const { return kind == k; }
  bool truth() const { return text == "true"; } // Precondition: boolean
  // Member of an object; nullptr when absent or when this is no object. A null member is found as null.
  const json_value* find(std::string_view key) const;
};

// Owns the bytes behind a tree.
class json_document {
public:
  json_document();
  ~json_document();
  json_document(json_document&&) noexcept;
  json_document& operator=(json_document&&) noexcept;
  // Any JSON value, scalars too. False: `error` says why, for a client to read ("... at byte 17").
  // With `trees`: an array or object under any other name of the root object is checked like the rest, but keeps its
  // kind only, so that a body's unknown fields cost nothing. At most max_json_values values are kept.
  bool parse(std::string_view text, std::span<const std::string_view> trees = {});
  const json_value& root() const { return root_; }
  const std::string& error() const { return error_; }

private:
  struct storage;
  std::unique_ptr<storage> storage_;
  json_value root_;
  std::string error_;
};

// True if `text` is a JSON number (RFC 8259), the whole of it.
bool is_json_number(std::string_view text);
// True if every byte belongs to a well-formed UTF-8 sequence (no surrogates, no overlong forms).
bool is_well_formed_utf8(std::string_view text);

} // namespace troupe
