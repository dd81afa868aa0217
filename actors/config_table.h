// The one table of settings: key, place in `settings`, range, help, profiles. Only config.cpp reads it.
#pragma once

#include "actors/settings.h"

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace troupe {

using setting_place = std::variant<bool settings::*, int32_t settings::*, int64_t settings::*, double settings::*,
                                   std::string settings::*, std::vector<std::string> settings::*>;

struct setting {
  std::string_view key; // file: key, environment: TROUPE_KEY, flag: --key with dashes
  setting_place place;
  std::string_view help;
  double low = 0, high = 0;      // of numbers, both legal
  std::string_view choices = {}; // of texts: "a|b"; empty: any
  int64_t unit = 1;              // what is stored for a value of 1
  bool is_secret = false;
  std::string_view group = {}; // set on the first of a group: its title
};

std::span<const setting> settings_table();

struct profile_value {
  std::string_view profile, key, value;
};
std::span<const profile_value> profile_table();
inline constexpr std::string_view profile_names[] = {"default", "low-memory", "throughput"};

// The key of the table that is nearest in spelling; underscores and dashes are one character.
std::string_view nearest_key(std::string_view key);
const setting* find_setting(std::string_view key);

// Reads a value as the setting's kind and stores it. Returns what was expected, empty when it fits.
// `items`: one text, or the items of a list.
std::string assign(settings&, const setting&, const std::vector<std::string>& items);
// As a TOML value.
std::string print(const settings&, const setting&);

} // namespace troupe
