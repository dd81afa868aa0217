// Where each setting comes from: defaults, profile, file, environment, flags; every mistake is named with its source.
#include "actors/config.h"

#include "actors/config_file.h"
#include "actors/config_table.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <utility>

namespace troupe {

namespace {

struct assignment {
  std::string key; // as written
  std::string source;
  std::vector<std::string> items;
};

[[noreturn]] void refuse(const assignment& a, const std::string& expected) {
  const auto* known = find_setting(a.key);
  std::string found;
  for (const auto& i : a.items) found += (found.empty() ? "'" : ", '") + i + "'";
  if (known && known->is_secret) found = "(hidden)";
  throw std::runtime_error(a.source + ": " + a.key + ": expected " + expected + ", found " +
                           (found.empty() ? "nothing" : found));
}

[[noreturn]] void refuse_unknown(const assignment& a, std::string_view spelling) {
  throw std::runtime_error(a.source + ": unknown setting '" + a.key + "', the nearest is '" + std::string(spelling) +
                           "'");
}

std::string flag_of(std::string_view key) {
  std::string out = "--" + std::string(key);
  std::replace(out.begin(), out.end(), '_', '-');
  return out;
}

std::string variable_of(std::string_view key) {
  std::string out = "TROUPE_" + std::string(key);
  std::transform(out.begin(), out.end(), out.begin(), [](char c) { return c >= 'a' && c <= 'z' ? c - 32 : c; });
  return out;
}

bool is_known(std::string_view key) { return key == "profile" || find_setting(key) != nullptr; }

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> out;
  std::istringstream in(text);
  for (std::string item; std::getline(in, item, ',');) out.push_back(item);
  return out;
}

bool is_list(std::string_view key) {
  const auto* s = find_setting(key);
  return s && std::holds_alternative<std::vector<std::string> settings::*>(s->place);
}

bool is_boolean(std::string_view key) {
  const auto* s = find_setting(key);
  return s && std::holds_alternative<bool settings::*>(s->place);
}

std::vector<assignment> read_file(const std::string& path) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored))
    throw std::runtime_error("file " + path + ": is a folder, expected a file");
  std::ifstream in(path, std::ios::binary);
  if (!in) throw std::runtime_error("file " + path + ": cannot be read");
  std::ostringstream text;
  text << in.rdbuf();
  std::vector<assignment> out;
  std::map<std::string, int> seen;
  for (auto& l : read_config_text(text.str(), path)) {
    assignment a{l.key, "file " + path + ":" + std::to_string(l.line), std::move(l.items)};
    if (!is_known(l.key)) refuse_unknown(a, nearest_key(l.key));
    if (const auto [first, fresh] = seen.emplace(l.key, l.line); !fresh)
      throw std::runtime_error(a.source + ": " + a.key + " is already set in line " + std::to_string(first->second));
    const auto* s = find_setting(l.key);
    const bool wants_text = !s || std::holds_alternative<std::string settings::*>(s->place);
    if (l.is_list != is_list(l.key)) refuse(a, l.is_list ? "one value" : "a list, as in [\"a\", \"b\"]");
    if (!l.is_list && l.is_quoted != wants_text) refuse(a, wants_text ? "a quoted text" : "a value without quotes");
    out.push_back(std::move(a));
  }
  return out;
}

std::vector<assignment> read_environment(const char* const* environment, std::optional<std::string>& file) {
  std::vector<assignment> out;
  constexpr std::string_view prefix = "TROUPE_";
  for (; environment && *environment; ++environment) {
    const std::string_view entry = *environment;
    if (entry.substr(0, prefix.size()) != prefix) continue;
    const size_t equals = std::min(entry.find('='), entry.size());
    const std::string name(entry.substr(0, equals));
    const std::string value(entry.substr(std::min(equals + 1, entry.size())));
    if (name == "TROUPE_CONFIG") {
      file = value;
      continue;
    }
    std::string key = name.substr(prefix.size());
    std::transform(key.begin(), key.end(), key.begin(), [](char c) { return c >= 'A' && c <= 'Z' ? c + 32 : c; });
    assignment a{key, "environment " + name, {value}};
    if (!is_known(key)) refuse_unknown({name, "environment", {}}, variable_of(nearest_key(key)));
    if (is_list(key)) a.items = split(value);
    out.push_back(std::move(a));
  }
  return out;
}

// One flag at arguments[at]; moves `at` behind what it took.
assignment read_flag(std::span<const std::string> arguments, size_t& at) {
  std::string_view text = std::string_view(arguments[at]).substr(2);
  const size_t equals = text.find('=');
  std::optional<std::string> value;
  if (equals != text.npos) value = std::string(text.substr(equals + 1));
  std::string key(text.substr(0, equals));
  const std::string flag = "--" + key;
  std::replace(key.begin(), key.end(), '-', '_');
  ++at;
  if (key == "disable_render" && !value) return {"enable_render", "flag " + flag, {"false"}};
  if (key.substr(0, 3) == "no_" && is_boolean(key.substr(3)) && !value)
    return {key.substr(3), "flag " + flag, {"false"}};
  if (key != "config" && !is_known(key)) refuse_unknown({flag, "flag", {}}, flag_of(nearest_key(key)));
  assignment a{key, "flag " + flag, {}};
  if (!value && is_boolean(key)) value = "true";
  if (!value) {
    if (at >= arguments.size()) throw std::runtime_error(a.source + ": expected a value, found nothing");
    value = arguments[at++];
  }
  if (is_list(key))
    a.items = split(*value);
  else
    a.items = {*value};
  return a;
}

std::vector<assignment> read_flags(std::span<const std::string> arguments, std::span<const std::string_view> others,
                                   std::vector<std::string>& rest, std::optional<std::string>& file) {
  std::vector<assignment> out;
  for (size_t at = 0; at < arguments.size();) {
    const auto& argument = arguments[at];
    const std::string name = argument.substr(0, argument.find('='));
    const bool is_other = std::find(others.begin(), others.end(), name) != others.end();
    if (argument == "--") {
      rest.insert(rest.end(), arguments.begin() + static_cast<std::ptrdiff_t>(at) + 1, arguments.end());
      break;
    }
    if (argument.substr(0, 2) != "--" || argument == "--help" || argument == "--version" || is_other) {
      rest.push_back(arguments[at++]);
      continue;
    }
    auto a = read_flag(arguments, at);
    const auto earlier = std::find_if(out.begin(), out.end(), [&](const assignment& o) { return o.key == a.key; });
    if (a.key == "config") {
      if (std::exchange(file, a.items.front())) throw std::runtime_error("flag --config: given twice");
    } else if (earlier == out.end()) {
      out.push_back(std::move(a));
    } else if (is_list(a.key)) {
      earlier->items.insert(earlier->items.end(), a.items.begin(), a.items.end());
    } else {
      throw std::runtime_error(a.source + ": " + a.key + " is given twice");
    }
  }
  return out;
}

// The profile by the strongest source that names one; takes it out of the lists.
assignment take_profile(std::span<std::vector<assignment>* const> weakest_first) {
  assignment profile{"profile", "default", {"default"}};
  for (auto* list : weakest_first) {
    const auto found = std::find_if(list->begin(), list->end(), [](const auto& a) { return a.key == "profile"; });
    if (found == list->end()) continue;
    profile = *found;
    list->erase(found);
  }
  const auto& name = profile.items.front();
  if (std::find(std::begin(profile_names), std::end(profile_names), name) == std::end(profile_names))
    refuse(profile, "one of default|low-memory|throughput");
  return profile;
}

} // namespace

loaded_config load_config(std::span<const std::string> arguments, const char* const* environment,
                          std::span<const std::string_view> other_flags) {
  loaded_config out;
  std::optional<std::string> file, file_of_environment;
  auto flags = read_flags(arguments, other_flags, out.rest, file);
  auto variables = read_environment(environment, file_of_environment);
  if (!file) file = file_of_environment;
  auto lines = file ? read_file(*file) : std::vector<assignment>{};
  std::vector<assignment>* const sources[] = {&lines, &variables, &flags};
  const auto profile = take_profile(sources);

  out.origins.push_back({"profile", profile.source});
  for (const auto& s : settings_table()) out.origins.push_back({std::string(s.key), "default"});
  const auto origin_of = [&](std::string_view key) -> std::string& {
    return std::find_if(out.origins.begin(), out.origins.end(), [&](const auto& o) { return o.key == key; })->source;
  };
  for (const auto& p : profile_table()) {
    if (p.profile != profile.items.front()) continue;
    assign(out.values, *find_setting(p.key), {std::string(p.value)});
    origin_of(p.key) = "profile " + std::string(p.profile);
  }
  for (const auto* list : sources) {
    for (const auto& a : *list) {
      const auto* s = find_setting(a.key);
      if (const auto expected = assign(out.values, *s, a.items); !expected.empty()) refuse(a, expected);
      auto& origin = origin_of(s->key);
      const bool is_shadowed = origin != "default" && origin.substr(0, 8) != "profile ";
      if (is_shadowed) out.warnings.push_back(std::string(s->key) + ": " + a.source + " overrides " + origin);
      origin = a.source;
    }
  }
  out.profile = profile.items.front();
  return out;
}

std::string loaded_config::show() const {
  std::string out;
  for (const auto& o : origins) {
    const auto* s = find_setting(o.key);
    std::string value = s ? print(values, *s) : "\"" + profile + "\"";
    if (s && s->is_secret && value != "[]") value = "(hidden)";
    std::string line = o.key + " = " + value;
    line.resize(std::max<size_t>(line.size() + 2, 44), ' ');
    out += line + "# " + o.source + "\n";
  }
  return out;
}

std::string config_help() {
  const settings defaults;
  std::string out = "Settings: flag --key, environment TROUPE_KEY, or key in the file named by --config or "
                    "TROUPE_CONFIG.\n  --profile default|low-memory|throughput\n      Defaults to start from.\n";
  for (const auto& s : settings_table()) {
    if (!s.group.empty()) out += "\n" + std::string(s.group) + ":\n";
    out += "  " + flag_of(s.key);
    if (!s.choices.empty()) out += " " + std::string(s.choices);
    out += "  (" + print(defaults, s) + ")\n      " + std::string(s.help) + "\n";
  }
  return out;
}

std::string config_sample() {
  const settings defaults;
  std::string out =
      "# Every setting of troupe with its default. Flags win over the environment (TROUPE_KEY), that over "
      "this file.\n# `troupe config show` prints what is in force and why.\n\n"
      "# Defaults to start from: default, low-memory, throughput.\n# profile = \"default\"\n";
  for (const auto& s : settings_table()) {
    if (!s.group.empty()) out += "\n## " + std::string(s.group) + "\n";
    out += "\n# " + std::string(s.help);
    if (!s.choices.empty()) out += " One of " + std::string(s.choices) + ".";
    out += "\n# " + std::string(s.key) + " = " + print(defaults, s) + "\n";
  }
  return out;
}

std::string config_value(const settings& values, std::string_view key) {
  const auto* s = find_setting(key);
  return s ? print(values, *s) : std::string();
}

} // namespace troupe
