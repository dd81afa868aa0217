// Names of what answers and cached rows come from: what changes them and what does not.
#include "actors/fingerprint.h"
#include "storage/build_id.h"
#include "tests/safetensors_writer.h"

#include <doctest/doctest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <set>
#include <string>

using namespace troupe;

namespace {

// A folder with what a fingerprint looks at: two files of weights, the second of 3 MB.
struct fake_model {
  fake_model() {
    put("config.json", "{\"layers\": 2}");
    put("tokenizer.json", "{}");
    put("model-1.safetensors", shard("{\"a\":{}}", 100));
    put("model-2.safetensors", shard("{\"b\":{}}", 3'000'000));
  }
  static std::string shard(const std::string& header, size_t n) {
    std::string out(8, '\0');
    const uint64_t size = header.size();
    std::memcpy(out.data(), &size, sizeof size);
    out += header;
    for (size_t i = 0; i < n; ++i) out += static_cast<char>(i * 31);
    return out;
  }
  void put(const std::string& name, const std::string& bytes) {
    std::ofstream(where.path() / name, std::ios::binary) << bytes;
  }
  std::string name(const std::function<void(settings&)>& change = {}) const {
    settings s;
    if (change) change(s);
    return make_fingerprint(where.path().string(), s);
  }
  std::string of_rows(const cached_form& form = {}) const {
    return make_cache_fingerprint(name(), where.path().string(), form);
  }
  test::temp_folder where;
};

} // namespace

TEST_CASE("fingerprint: the build is part of it") {
  CHECK(build_id().size() == 40); // a SHA-1
  CHECK(build_id().find_first_not_of("0123456789abcdef") == std::string::npos);
}

TEST_CASE("fingerprint: weights, files and settings that change what is generated change it, and nothing else does") {
  fake_model m;
  const auto before = m.name();
  CHECK(before.size() == 19);
  CHECK(before == m.name());
  CHECK(before == m.name([](settings& s) { s.port = 9, s.spec = "none", s.max_running = 3; }));
  std::set<std::string> all{before};
  const auto is_new = [&](const std::string& name) { return all.insert(name).second; };
  CHECK(is_new(m.name([](settings& s) { s.ranks = 2; })));
  CHECK(is_new(m.name([](settings& s) { s.prefill = "tail"; })));
  CHECK(is_new(m.name([](settings& s) { s.backend = "cuda"; })));
  CHECK(is_new(m.name([](settings& s) { s.suppress_reserved = !s.suppress_reserved; })));
  auto bytes = fake_model::shard("{\"b\":{}}", 3'000'000);
  for (auto& c : bytes) c = static_cast<char>(c ^ 1); // other weights, the same tensors
  std::memcpy(bytes.data(), fake_model::shard("{\"b\":{}}", 0).data(), 16);
  m.put("model-2.safetensors", bytes);
  CHECK(is_new(m.name()));
  m.put("model-2.safetensors", fake_model::shard("{\"c\":{}}", 3'000'000));
  CHECK(is_new(m.name()));
  m.put("model-1.safetensors", fake_model::shard("{\"a\":{}}", 101));
  CHECK(is_new(m.name()));
  m.put("config.json", "{\"layers\": 3}");
  CHECK(is_new(m.name()));
  m.put("tokenizer.json", "{ }");
  CHECK(is_new(m.name()));
  m.put("model-3.safetensors", "short");
  CHECK(is_new(m.name()));
}

TEST_CASE("fingerprint: rows of another form, or of files that were touched since, have another one") {
  const fake_model m;
  std::set<std::string> all{m.name(), m.of_rows()};
  const auto is_new = [&](const std::string& name) { return all.insert(name).second; };
  CHECK(!is_new(m.of_rows()));
  CHECK(is_new(m.of_rows({cache_form::records})));
  CHECK(is_new(m.of_rows({cache_form::floats, 1, 0, false})));
  CHECK(is_new(m.of_rows({cache_form::floats, 0, 1, false})));
  CHECK(is_new(m.of_rows({cache_form::floats, 0, 0, true})));
  const auto path = m.where.path() / "model-2.safetensors";
  std::filesystem::last_write_time(path, std::filesystem::last_write_time(path) + std::chrono::seconds(1));
  CHECK(is_new(m.of_rows()));
}
