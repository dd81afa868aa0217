// Conversions and the wording of refusals.
#include "net/fields.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <cstdlib>

namespace troupe {

void request_problem::add(std::string message, std::string_view param) {
  if (!first_) first_ = api_error{400, "BadRequestError", std::move(message), std::string(param), 0};
}

void request_problem::add(api_error e) {
  if (!first_) first_ = std::move(e);
}

std::optional<double> to_number(const json_value& v) {
  if (!v.is(json_kind::number)) return {};
  double d = 0;
  const auto r = std::from_chars(v.text.data(), v.text.data() + v.text.size(), d);
  if (r.ec == std::errc::result_out_of_range) d = std::strtod(std::string(v.text).c_str(), nullptr);
  if (!std::isfinite(d)) return {};
  return d;
}

std::optional<int64_t> to_integer(const json_value& v) {
  if (!v.is(json_kind::number)) return {};
  int64_t n = 0;
  const char* end = v.text.data() + v.text.size();
  const auto r = std::from_chars(v.text.data(), end, n);
  if (r.ec == std::errc() && r.ptr == end) return n;
  if (v.text.find_first_of(".eE") == std::string_view::npos) return {};
  const auto d = to_number(v);
  if (!d || std::floor(*d) != *d || std::fabs(*d) > 9007199254740992.0) return {}; // 2^53: exact in a double
  return static_cast<int64_t>(*d);
}

const json_value* field_reader::present(std::string_view key) const {
  const json_value* v = object_.find(key);
  return v && !v->is(json_kind::null) ? v : nullptr;
}

std::string field_reader::path_of(std::string_view key) const {
  return path_.empty() ? std::string(key) : path_ + "." + std::string(key);
}

std::string_view field_reader::param_of(std::string_view key) const {
  return path_.empty() ? key : std::string_view(path_).substr(0, path_.find_first_of(".["));
}

void field_reader::wrong_kind(std::string_view key, std::string_view expected, const json_value& found) const {
  problem_.add(fmt::format("{}: expected {}, found {}", path_of(key), expected,
                           found.is(json_kind::number) ? quote(found.text, 40) : name(found.kind)),
               param_of(key));
}

const json_value* field_reader::of_kind(std::string_view key, json_kind kind) const {
  const json_value* v = present(key);
  if (!v || v->is(kind)) return v;
  wrong_kind(key, fmt::format("{} {}", kind == json_kind::array || kind == json_kind::object ? "an" : "a", name(kind)),
             *v);
  return nullptr;
}

std::optional<bool> field_reader::truth(std::string_view key) const {
  const json_value* v = of_kind(key, json_kind::boolean);
  if (!v) return {};
  return v->truth();
}

bool field_reader::truth(std::string_view key, bool fallback) const { return truth(key).value_or(fallback); }

std::optional<int64_t> field_reader::integer(std::string_view key) const {
  const json_value* v = present(key);
  if (!v) return {};
  const auto n = to_integer(*v);
  if (!n) wrong_kind(key, "an integer", *v);
  return n;
}

std::optional<double> field_reader::number(std::string_view key) const {
  const json_value* v = present(key);
  if (!v) return {};
  const auto d = to_number(*v);
  if (!d) wrong_kind(key, "a finite number", *v);
  return d;
}

std::optional<std::string_view> field_reader::string(std::string_view key) const {
  const json_value* v = of_kind(key, json_kind::string);
  if (!v) return {};
  return v->text;
}

std::vector<int32_t> field_reader::token_ids(std::string_view key, int64_t vocabulary) const {
  std::vector<int32_t> ids;
  const json_value* list = of_kind(key, json_kind::array);
  if (!list) return ids;
  ids.reserve(list->items.size());
  for (size_t i = 0; i < list->items.size() && !problem_.found(); i++) {
    const auto id = to_integer(list->items[i]);
    if (!id) {
      refuse(key, fmt::format("{}[{}]: expected a token id", path_of(key), i));
    } else if (*id < 0 || *id >= vocabulary) {
      refuse(key, fmt::format("{}: Token id {} is out of vocabulary ({} tokens)", path_of(key), *id, vocabulary));
    } else {
      ids.push_back(static_cast<int32_t>(*id));
    }
  }
  return ids;
}

} // namespace troupe
