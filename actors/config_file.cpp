// A small strict reader of key = value lines.
#include "actors/config_file.h"

#include <stdexcept>

namespace troupe {

namespace {

class reader {
public:
  reader(std::string_view text, const std::string& file) : text_(text), file_(file) {}

  std::vector<config_line> lines() {
    std::vector<config_line> out;
    for (skip(true); at_ < text_.size(); skip(true)) {
      if (text_[at_] == '[') fail("tables are not used here, expected key = value");
      config_line l;
      l.line = line_;
      l.key = key();
      skip(false);
      if (!take('=')) fail("expected = after '" + l.key + "'");
      skip(false);
      value(l);
      skip(false);
      if (at_ < text_.size() && text_[at_] != '\n') fail("unexpected text after the value of '" + l.key + "'");
      out.push_back(std::move(l));
    }
    return out;
  }

private:
  [[noreturn]] void fail(const std::string& what) const {
    throw std::runtime_error(file_ + ":" + std::to_string(line_) + ": " + what);
  }
  bool take(char c) {
    if (at_ >= text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  // Blanks and comments; line ends too with `lines`.
  void skip(bool lines) {
    while (at_ < text_.size()) {
      const char c = text_[at_];
      if (c == '#') {
        while (at_ < text_.size() && text_[at_] != '\n') ++at_;
      } else if (c == ' ' || c == '\t' || c == '\r' || (lines && c == '\n')) {
        line_ += c == '\n';
        ++at_;
      } else {
        return;
      }
    }
  }
  std::string bare() {
    const size_t from = at_;
    while (at_ < text_.size() && std::string_view(" \t\r\n#=,[]\"'").find(text_[at_]) == std::string_view::npos) ++at_;
    return std::string(text_.substr(from, at_ - from));
  }
  std::string key() {
    const auto k = bare();
    if (k.empty()) fail("expected a key");
    return k;
  }
  std::string string() {
    const char quote = text_[at_++];
    std::string out;
    while (true) {
      if (at_ >= text_.size() || text_[at_] == '\n') fail("a string is not closed");
      const char c = text_[at_++];
      if (c == quote) return out;
      if (c != '\\' || quote == '\'') {
        out += c;
        continue;
      }
      const char e = at_ < text_.size() ? text_[at_++] : '\n';
      switch (e) {
      case '"': out += '"'; break;
      case '\\': out += '\\'; break;
      case 'n': out += '\n'; break;
      case 't': out += '\t'; break;
      default: fail("unknown escape in a string");
      }
    }
  }
  bool at_quote() const { return at_ < text_.size() && (text_[at_] == '"' || text_[at_] == '\''); }
  void value(config_line& l) {
    if (take('[')) {
      l.is_list = true;
      for (skip(true); !take(']'); skip(true)) {
        if (!at_quote()) fail("expected a quoted text in the list of '" + l.key + "'");
        l.items.push_back(string());
        skip(true);
        if (!take(',') && (at_ >= text_.size() || text_[at_] != ']')) fail("a list is not closed");
      }
    } else if (at_quote()) {
      l.is_quoted = true;
      l.items.push_back(string());
    } else {
      l.items.push_back(bare());
      if (l.items.back().empty()) fail("'" + l.key + "' has no value");
    }
  }

  std::string_view text_;
  const std::string& file_;
  size_t at_ = 0;
  int line_ = 1;
};

} // namespace

std::vector<config_line> read_config_text(std::string_view text, const std::string& file) {
  return reader(text, file).lines();
}

} // namespace troupe
