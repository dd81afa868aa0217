// Typed reading of request fields: every refusal names the path, what was expected and what was found (api.md section
// 9). The first problem of a request wins; readers return defaults after it, so a parser may run on to its end.
#pragma once

#include "actors/turn_sink.h"
#include "net/json_text.h"
#include "net/json_tree.h"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace troupe {

class request_problem {
public:
  bool found() const { return first_.has_value(); }
  const api_error& first() const { return *first_; }
  // 400 with the parameter named, unless a problem was found before.
  void add(std::string message, std::string_view param);
  void add(api_error e);

private:
  std::optional<api_error> first_;
};

// One object of a request. `path` is empty for the body itself, else "messages[1]", "stream_options", ...
class field_reader {
public:
  field_reader(const json_value& object, std::string path, request_problem& problem)
      : object_(object), path_(std::move(path)), problem_(problem) {}

  // The member if it is there and not null (null = absent, api.md section 0).
  const json_value* present(std::string_view key) const;
  // As present, refused when of another kind.
  const json_value* of_kind(std::string_view key, json_kind kind) const;
  bool truth(std::string_view key, bool fallback) const;
  std::optional<bool> truth(std::string_view key) const;
  std::optional<int64_t> integer(std::string_view key) const; // 1.0 is 1; "1" and true are refused
  std::optional<double> number(std::string_view key) const;
  std::optional<std::string_view> string(std::string_view key) const;
  std::vector<int32_t> token_ids(std::string_view key, int64_t vocabulary) const;
  std::string path_of(std::string_view key) const;
  // The top-level field that `error.param` names.
  std::string_view param_of(std::string_view key) const;
  void refuse(std::string_view key, std::string message) const { problem_.add(std::move(message), param_of(key)); }
  request_problem& problem() const { return problem_; }
  const json_value& object() const { return object_; }

private:
  void wrong_kind(std::string_view key, std::string_view expected, const json_value& found) const;

  const json_value& object_;
  std::string path_;
  request_problem& problem_;
};

// An integer or an integral decimal ("3", "3.0", "3e2") within int64; nothing else.
std::optional<int64_t> to_integer(const json_value&);
std::optional<double> to_number(const json_value&); // finite only

} // namespace troupe
