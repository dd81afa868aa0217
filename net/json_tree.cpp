// Walks simdjson's on-demand iterator once and builds the tree; on-demand because the dom form loses number spelling.
#include "net/json_tree.h"

#include "net/json_text.h"

#include <fmt/format.h>
#include <simdjson.h>

#include <algorithm>
#include <unordered_map>

namespace troupe {
namespace {

constexpr int max_depth = 256; // api.md section 0
namespace od = simdjson::ondemand;

std::string_view trimmed(std::string_view s) {
  while (!s.empty() && (s.back() == ' ' || s.back() == '\n' || s.back() == '\r' || s.back() == '\t'))
    s.remove_suffix(1);
  return s;
}

// Finds the place of a key in an object under construction: linear while small, hashed when a client sends thousands.
class key_index {
public:
  // Index of `key` in `keys`, or keys.size() if it is new.
  size_t place(const std::vector<std::string_view>& keys, std::string_view key) {
    if (keys.size() < 16) {
      for (size_t i = 0; i < keys.size(); i++)
        if (keys[i] == key) return i;
      return keys.size();
    }
    if (seen_.empty())
      for (size_t i = 0; i < keys.size(); i++) seen_.emplace(keys[i], i);
    return seen_.emplace(key, keys.size()).first->second;
  }

private:
  std::unordered_map<std::string_view, size_t> seen_;
};

class tree_builder {
public:
  explicit tree_builder(std::span<const std::string_view> trees) : trees_(trees) {}
  std::string error;

  // `keep` false: the value is checked, `out` gets its kind.
  bool build(od::value in, json_value& out, int depth, bool keep = true) {
    if (depth > max_depth) return fail("nested deeper than 256 levels");
    if (keep && ++n_values_ > max_json_values) return fail(fmt::format("more than {} values", max_json_values));
    od::json_type type;
    if (auto e = in.type().get(type)) return fail(e);
    if (!keep) {
      if (type == od::json_type::object) return check_object(in, out, depth);
      if (type == od::json_type::array) return check_array(in, out, depth);
    }
    switch (type) {
    case od::json_type::object: return build_object(in, out, depth);
    case od::json_type::array: return build_array(in, out, depth);
    case od::json_type::string: return build_string(in, out);
    default: return build_scalar(in, out);
    }
  }

private:
  bool fail(simdjson::error_code e) { return fail(simdjson::error_message(e)); }
  bool fail(std::string_view why) {
    if (error.empty()) error = why;
    return false;
  }

  bool keep_string(std::string_view s) {
    // The text was checked as a whole; only an escape can have made a surrogate half.
    return s.find('\xED') == std::string_view::npos || is_well_formed_utf8(s) ||
           fail("a lone surrogate escape in a string");
  }

  bool build_string(od::value& in, json_value& out) {
    out.kind = json_kind::string;
    if (auto e = in.get_string().get(out.text)) return fail(e);
    return keep_string(out.text);
  }

  bool build_scalar(od::value& in, json_value& out) {
    out.text = trimmed(in.raw_json_token());
    if (out.text == "null") {
      out = {};
    } else if (out.text == "true" || out.text == "false") {
      out.kind = json_kind::boolean;
    } else if (is_json_number(out.text)) {
      out.kind = json_kind::number;
    } else {
      return fail(fmt::format("'{}' is not a JSON value", quote(out.text, 20)));
    }
    return true;
  }

  bool build_array(od::value& in, json_value& out, int depth) {
    out.kind = json_kind::array;
    od::array items;
    if (auto e = in.get_array().get(items)) return fail(e);
    for (auto item : items) {
      od::value v;
      if (auto e = item.get(v)) return fail(e);
      if (!build(v, out.items.emplace_back(), depth + 1)) return false;
    }
    return true;
  }

  bool check_array(od::value& in, json_value& out, int depth) {
    out.kind = json_kind::array;
    od::array items;
    if (auto e = in.get_array().get(items)) return fail(e);
    for (auto item : items) {
      od::value v;
      json_value ignored;
      if (auto e = item.get(v)) return fail(e);
      if (!build(v, ignored, depth + 1, false)) return false;
    }
    return true;
  }

  bool check_object(od::value& in, json_value& out, int depth) {
    out.kind = json_kind::object;
    od::object fields;
    if (auto e = in.get_object().get(fields)) return fail(e);
    for (auto field : fields) {
      std::string_view key;
      od::value v;
      json_value ignored;
      if (auto e = field.unescaped_key().get(key)) return fail(e);
      if (!keep_string(key)) return false;
      if (auto e = field.value().get(v)) return fail(e);
      if (!build(v, ignored, depth + 1, false)) return false;
    }
    return true;
  }

  // Of a member of the root object: the others follow their parent.
  bool is_kept(od::value& v, std::string_view key, int depth) {
    od::json_type type;
    if (trees_.empty() || depth > 1 || v.type().get(type)) return true;
    if (type != od::json_type::object && type != od::json_type::array) return true;
    return std::find(trees_.begin(), trees_.end(), key) != trees_.end();
  }

  bool build_object(od::value& in, json_value& out, int depth) {
    out.kind = json_kind::object;
    od::object fields;
    if (auto e = in.get_object().get(fields)) return fail(e);
    key_index index;
    for (auto field : fields) {
      std::string_view key;
      if (auto e = field.unescaped_key().get(key)) return fail(e);
      if (!keep_string(key)) return false;
      const size_t at = index.place(out.keys, key);
      if (at == out.keys.size()) {
        out.keys.push_back(key);
        out.items.emplace_back();
      } else {
        out.items[at] = {};
      }
      od::value v;
      if (auto e = field.value().get(v)) return fail(e);
      if (!build(v, out.items[at], depth + 1, is_kept(v, key, depth))) return false;
    }
    return true;
  }

  std::span<const std::string_view> trees_;
  size_t n_values_ = 0;
};

} // namespace

const char* name(json_kind k) {
  static constexpr const char* names[] = {"null", "boolean", "number", "string", "array", "object"};
  return names[static_cast<size_t>(k)];
}

const json_value* json_value::find(std::string_view key) const {
  for (size_t i = 0; i < keys.size(); i++)
    if (keys[i] == key) return &items[i];
  return nullptr;
}

struct json_document::storage {
  od::parser parser;
  std::string bytes;
};

json_document::json_document() = default;
json_document::~json_document() = default;
json_document::json_document(json_document&&) noexcept = default;
json_document& json_document::operator=(json_document&&) noexcept = default;

bool json_document::parse(std::string_view text, std::span<const std::string_view> trees) {
  storage_ = std::make_unique<storage>();
  root_ = {};
  error_.clear();
  if (text.starts_with("\xEF\xBB\xBF")) text.remove_prefix(3);
  // Inside brackets, so that a scalar document needs no second code path.
  auto& bytes = storage_->bytes;
  bytes.reserve(text.size() + 2 + simdjson::SIMDJSON_PADDING);
  bytes += '[';
  bytes += text;
  bytes += ']';
  od::document doc;
  tree_builder builder(trees);
  json_value outer;
  auto e =
      storage_->parser.iterate(simdjson::padded_string_view(bytes.data(), bytes.size(), bytes.capacity())).get(doc);
  od::array items;
  if (!e) e = doc.get_array().get(items);
  if (e) {
    error_ = simdjson::error_message(e);
    return false;
  }
  bool good = true;
  for (auto item : items) {
    od::value v;
    if ((e = item.get(v))) break;
    if (!(good = builder.build(v, outer.items.emplace_back(), 1))) break;
  }
  if (e) builder.error = simdjson::error_message(e);
  if (!good || e) {
    const char* at = nullptr;
    error_ = builder.error;
    if (!doc.current_location().get(at) && at > bytes.data() && at <= bytes.data() + bytes.size())
      error_ += fmt::format(" (near byte {})", at - bytes.data() - 1);
    return false;
  }
  const char* rest = nullptr; // past the end there is no location
  if (!doc.current_location().get(rest) || outer.items.size() != 1) {
    error_ = outer.items.empty() ? "empty" : "text after the JSON value";
    return false;
  }
  root_ = std::move(outer.items[0]);
  return true;
}

bool is_json_number(std::string_view s) {
  size_t i = 0;
  const auto digits = [&] {
    const size_t from = i;
    while (i < s.size() && s[i] >= '0' && s[i] <= '9') i++;
    return i - from;
  };
  if (i < s.size() && s[i] == '-') i++;
  const size_t first = i, n = digits();
  if (n == 0 || (n > 1 && s[first] == '0')) return false;
  if (i < s.size() && s[i] == '.') {
    i++;
    if (digits() == 0) return false;
  }
  if (i < s.size() && (s[i] == 'e' || s[i] == 'E')) {
    i++;
    if (i < s.size() && (s[i] == '+' || s[i] == '-')) i++;
    if (digits() == 0) return false;
  }
  return i == s.size();
}

bool is_well_formed_utf8(std::string_view text) { return simdjson::validate_utf8(text.data(), text.size()); }

} // namespace troupe
