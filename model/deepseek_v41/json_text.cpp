// A recursive reader that keeps nothing but its place.
#include "model/deepseek_v41/json_text.h"

namespace troupe {
namespace {

constexpr int deepest = 512;

bool is_space(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_hex(char c) { return is_digit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F'); }

class reader {
public:
  explicit reader(std::string_view text, std::vector<std::string_view>* keys = nullptr) : text_(text), keys_(keys) {}

  json_kind document() {
    const json_kind kind = value(0);
    spaces();
    return at_ == text_.size() ? kind : json_kind::invalid;
  }

private:
  char peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }
  bool take(char c) {
    if (at_ >= text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  void spaces() {
    while (at_ < text_.size() && is_space(text_[at_])) ++at_;
  }
  json_kind word(std::string_view w, json_kind kind) {
    if (text_.substr(at_, w.size()) != w) return json_kind::invalid;
    at_ += w.size();
    return kind;
  }

  json_kind value(int depth) {
    spaces();
    switch (peek()) {
    case '{': return depth < deepest && object(depth) ? json_kind::object : json_kind::invalid;
    case '[': return depth < deepest && array(depth) ? json_kind::array : json_kind::invalid;
    case '"': return string() ? json_kind::string : json_kind::invalid;
    case 't': return word("true", json_kind::boolean);
    case 'f': return word("false", json_kind::boolean);
    case 'n': return word("null", json_kind::null);
    default: return number();
    }
  }

  bool object(int depth) {
    take('{');
    spaces();
    if (take('}')) return true;
    do {
      spaces();
      const size_t begin = at_ + 1;
      if (!string()) return false;
      if (keys_ != nullptr && depth == 0) keys_->push_back(text_.substr(begin, at_ - begin - 1));
      spaces();
      if (!take(':') || value(depth + 1) == json_kind::invalid) return false;
      spaces();
    } while (take(','));
    return take('}');
  }

  bool array(int depth) {
    take('[');
    spaces();
    if (take(']')) return true;
    do {
      if (value(depth + 1) == json_kind::invalid) return false;
      spaces();
    } while (take(','));
    return take(']');
  }

  bool string() {
    if (!take('"')) return false;
    while (at_ < text_.size()) {
      const char c = text_[at_++];
      if (c == '"') return true;
      if (static_cast<unsigned char>(c) < 0x20) return false;
      if (c == '\\' && !escape()) return false;
    }
    return false;
  }
  bool escape() {
    const char c = peek();
    ++at_;
    if (c != 'u') return c != '\0' && std::string_view("\"\\/bfnrt").find(c) != std::string_view::npos;
    for (int i = 0; i < 4; ++i, ++at_)
      if (!is_hex(peek())) return false;
    return true;
  }

  bool digits() {
    const size_t begin = at_;
    while (is_digit(peek())) ++at_;
    return at_ != begin;
  }
  json_kind number() {
    take('-');
    if (!take('0') && !digits()) return json_kind::invalid;
    json_kind kind = json_kind::integer;
    if (take('.')) {
      kind = json_kind::number;
      if (!digits()) return json_kind::invalid;
    }
    if (take('e') || take('E')) {
      kind = json_kind::number;
      if (!take('+')) take('-');
      if (!digits()) return json_kind::invalid;
    }
    return kind;
  }

  std::string_view text_;
  std::vector<std::string_view>* keys_;
  size_t at_ = 0;
};

} // namespace

json_kind kind_of_json(std::string_view text) { return reader(text).document(); }

std::string_view trim_json(std::string_view text) {
  while (!text.empty() && is_space(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_space(text.back())) text.remove_suffix(1);
  return text;
}

std::vector<std::string_view> keys_of_json(std::string_view text) {
  std::vector<std::string_view> keys;
  reader(text, &keys).document();
  return keys;
}

void append_json_escaped(std::string& out, std::string_view text) {
  constexpr std::string_view hex = "0123456789abcdef";
  size_t plain = 0; // start of the run not yet copied
  for (size_t i = 0; i < text.size(); ++i) {
    const auto c = static_cast<unsigned char>(text[i]);
    if (c >= 0x20 && c != '"' && c != '\\') continue;
    out += text.substr(plain, i - plain);
    plain = i + 1;
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
  out += text.substr(plain);
}

} // namespace troupe
