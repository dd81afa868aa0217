// The one table of settings: name, default, range, help; where each value came from. The only reader of the
// environment. Sources, weakest first: defaults, profile, file, environment (TROUPE_*), flags.
#pragma once

#include "actors/settings.h"

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace troupe {

struct loaded_config {
  settings values;
  std::string profile = "default";
  std::vector<std::string> rest;     // arguments that are not settings: verbs, their operands; `--` ends the flags
  std::vector<std::string> warnings; // one source overrides another
  std::string show() const;          // `config show`: one line a key: value, origin; secrets hidden

  struct origin {
    std::string key, source; // "default", "profile low-memory", "file /etc/troupe.toml:12", "environment TROUPE_PORT",
                             // "flag --port"
  };
  std::vector<origin> origins; // in the table's order
};

// `arguments`: without the program's name; --config FILE names the file (else TROUPE_CONFIG, else none). `environment`:
// main's third argument, "NAME=value" strings ended by a null pointer; null: none. Throws std::runtime_error naming
// key, source, expected, found and, for an unknown key, the nearest name. -h, --help, --version stay in `rest`.
// `other_flags`: flags of verbs ("--url"), left in `rest` as they are written, with --url=VALUE or the next argument.
loaded_config load_config(std::span<const std::string> arguments, const char* const* environment,
                          std::span<const std::string_view> other_flags = {});

// One paragraph a key, from the table.
std::string config_help();
// The sample file: every key, commented out, with its default. etc/troupe.toml holds this text.
std::string config_sample();
// A setting's value as the table prints it; for tests.
std::string config_value(const settings&, std::string_view key);

} // namespace troupe
