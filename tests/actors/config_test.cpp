// Sources, their order, and the messages of every mistake.
#include "actors/config.h"
#include "actors/config_table.h"

#include <doctest/doctest.h>

#include <cstdio>
#include <fstream>
#include <sstream>
#include <stdexcept>

using namespace troupe;

namespace {

std::string file_with(const std::string& text) {
  static int n = 0;
  const std::string path = std::string(TROUPE_BINARY_DIR) + "/config_test_" + std::to_string(n++) + ".toml";
  std::ofstream(path) << text;
  return path;
}

loaded_config load(std::vector<std::string> flags, std::vector<std::string> variables = {},
                   const std::string& file = {}) {
  std::vector<const char*> environment;
  for (const auto& v : variables) environment.push_back(v.c_str());
  environment.push_back(nullptr);
  if (!file.empty()) {
    flags.push_back("--config");
    flags.push_back(file_with(file));
  }
  auto c = load_config(flags, environment.data());
  if (!file.empty()) std::remove(flags.back().c_str());
  return c;
}

std::string mistake(std::vector<std::string> flags, std::vector<std::string> variables = {},
                    const std::string& file = {}) {
  try {
    load(std::move(flags), std::move(variables), file);
  } catch (const std::runtime_error& e) { return e.what(); }
  return "none";
}

std::string origin(const loaded_config& c, std::string_view key) {
  for (const auto& o : c.origins)
    if (o.key == key) return o.source;
  return "missing";
}

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

} // namespace

TEST_CASE("config: etc/troupe.toml is the table") {
  std::ifstream in(TROUPE_SOURCE_DIR "/etc/troupe.toml");
  std::ostringstream text;
  text << in.rdbuf();
  CHECK(text.str() == config_sample());
  std::string active = text.str(); // with every comment sign of a key taken away it reads back as the defaults
  for (const auto& s : settings_table()) {
    const auto at = active.find("\n# " + std::string(s.key) + " = ");
    REQUIRE(at != std::string::npos);
    active.erase(at + 1, 2);
  }
  const auto c = load({}, {}, active);
  for (const auto& s : settings_table()) CHECK(config_value(c.values, s.key) == config_value(settings{}, s.key));
}

// The kit's settings file, carried over from an older version, keeps none of the new defaults out. Ours are versioned
// with the build: a file holds what somebody set, and the sample sets nothing.
TEST_CASE("config: features 6.7, a copied sample pins no default, so a later build's hold at the next start") {
  const auto c = load({}, {}, config_sample());
  const auto none = load({}, {}, "");
  for (const auto& s : settings_table()) {
    CAPTURE(s.key);
    CHECK(origin(c, s.key) == origin(none, s.key));
    CHECK(config_value(c.values, s.key) == config_value(settings{}, s.key));
  }
  const auto set = load({}, {}, "chunk_tokens = 512\n"); // the default, and somebody's wish
  CHECK(origin(set, "chunk_tokens") != origin(none, "chunk_tokens"));
}

TEST_CASE("config: every key can be set by every source, and the stronger one wins") {
  for (const auto& s : settings_table()) {
    const std::string key(s.key);
    CAPTURE(key);
    std::string value = config_value(settings{}, key), plain = value;
    if (plain.size() >= 2 && plain.front() == '"') plain = plain.substr(1, plain.size() - 2);
    if (plain == "[]") plain = "a", value = "[\"a\"]";
    std::string variable = "TROUPE_" + key, flag = "--" + key;
    for (auto& c : variable) c = static_cast<char>(std::toupper(c));
    for (auto& c : flag)
      if (c == '_') c = '-';
    CHECK(has(origin(load({}, {}, key + " = " + value), key), "file "));
    CHECK(origin(load({}, {variable + "=" + plain}), key) == "environment " + variable);
    CHECK(origin(load({flag + "=" + plain}), key) == "flag " + flag);
    const auto all = load({flag + "=" + plain}, {variable + "=" + plain}, key + " = " + value);
    CHECK(origin(all, key) == "flag " + flag);
    CHECK(all.warnings.size() == 2);
    CHECK(origin(load({}), key) == "default");
  }
}

TEST_CASE("config: unknown keys are refused with the nearest name, from every source") {
  CHECK(has(mistake({"--prot", "1"}), "'--prot', the nearest is '--port'"));
  CHECK(has(mistake({}, {"TROUPE_MAX_QUEU=1"}), "TROUPE_MAX_QUEUE"));
  const auto file = mistake({}, {}, "\nmax_runing = 3\n");
  CHECK(has(file, ":2: unknown setting 'max_runing', the nearest is 'max_running'"));
}

TEST_CASE("config: values out of range, of the wrong kind or given twice are refused by key, source and expectation") {
  CHECK(has(mistake({"--port", "70000"}), "flag --port: port: expected a whole number from 0 to 65535, found '70000'"));
  CHECK(has(mistake({"--port", "12x"}), "found '12x'"));
  CHECK(has(mistake({"--port"}), "expected a value"));
  CHECK(has(mistake({"--port", "1", "--port", "2"}), "given twice"));
  CHECK(has(mistake({"--backend", "gpu"}), "auto|host|cuda|null"));
  CHECK(has(mistake({"--strict-openai=maybe"}), "true or false"));
  CHECK(has(mistake({}, {"TROUPE_PREFILL=some"}), "environment TROUPE_PREFILL"));
  CHECK(has(mistake({"--profile", "fast"}), "default|low-memory|throughput"));
  CHECK(has(mistake({}, {}, "port = \"80\""), "a value without quotes"));
  CHECK(has(mistake({}, {}, "host = localhost"), "a quoted text"));
  CHECK(has(mistake({}, {}, "api_key = \"k\""), "a list"));
  CHECK(has(mistake({}, {}, "port = 1\nport = 2"), "already set in line 1"));
  CHECK(has(mistake({}, {}, "[server]\nport = 1"), ":1: tables are not used"));
  CHECK(has(mistake({}, {}, "port 1"), "expected ="));
  CHECK(has(mistake({}, {}, "port ="), "has no value"));
  CHECK(has(mistake({}, {}, "host = \"a"), "not closed"));
  CHECK(has(mistake({}, {}, "port = 1 2"), "unexpected text"));
  CHECK(has(mistake({"--config", "/nowhere/x.toml"}), "/nowhere/x.toml: cannot be read"));
  CHECK(has(mistake({"--config", TROUPE_BINARY_DIR}), "is a folder, expected a file"));
  CHECK(has(mistake({}, {"TROUPE_CONFIG=" TROUPE_BINARY_DIR}), "is a folder, expected a file"));
}

TEST_CASE("config: flags in all their spellings; what is not a setting stays") {
  const auto c = load({"serve", "--clamp-max-tokens", "--no-suppress-reserved", "--disable-render", "--api-key", "a",
                       "--api-key=b,c", "--kv_memory_mb", "10", "--help"});
  CHECK(c.values.clamp_max_tokens);
  CHECK_FALSE(c.values.suppress_reserved);
  CHECK_FALSE(c.values.enable_render);
  CHECK(c.values.api_keys == std::vector<std::string>{"a", "b", "c"});
  CHECK(c.values.kv_memory_bytes == 10 << 20);
  CHECK(c.rest == std::vector<std::string>{"serve", "--help"});
  const std::string_view others[] = {"--url"};
  const std::vector<std::string> arguments{"status", "--url", "x", "--url=y"};
  CHECK(load_config(arguments, nullptr, others).rest == arguments);
}

TEST_CASE("config: show gives value and origin, and hides keys") {
  const auto text = load({"--api-key", "secret", "--port", "5"}, {"TROUPE_HOST=0.0.0.0"}).show();
  CHECK_FALSE(has(text, "secret"));
  CHECK(has(text, "api_key = (hidden)"));
  CHECK(has(text, "# environment TROUPE_HOST"));
  CHECK(has(text, "port = 5"));
  CHECK_FALSE(has(mistake({"--api-key", ""}), "secret"));
}

TEST_CASE("config: a profile sets defaults only") {
  const auto c = load({"--profile", "low-memory", "--chunk-tokens", "99"});
  CHECK(c.values.max_running == 8);
  CHECK(c.values.chunk_tokens == 99);
  CHECK(origin(c, "max_running") == "profile low-memory");
  CHECK(c.warnings.empty());
}

TEST_CASE("config: the help names every key") {
  const auto help = config_help();
  for (const auto& s : settings_table()) CHECK(has(help, std::string(s.help)));
}
