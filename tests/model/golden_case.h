// A golden case of the model: its files, a folder that loads, and a runner that keeps what the observer saw.
#pragma once

#include "gpu/collective.h"
#include "model/deepseek_v41/model_v41.h"
#include "model/deepseek_v41/tables.h"
#include "tests/test_device.h"

#include <doctest/doctest.h>
#include <simdjson.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <set>
#include <string>
#include <thread>
#include <vector>

namespace golden {

using namespace troupe;
using namespace troupe::deepseek_v41;
namespace fs = std::filesystem;

inline std::string read_text(const fs::path& p) {
  std::ifstream in(p, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

// The case folder in the tree, or beside it; empty: absent on this machine.
inline fs::path find_case(const std::string& name) {
  const fs::path tree = fs::path(TROUPE_SOURCE_DIR) / "tests/golden/model" / name;
  const fs::path beside = fs::path(TROUPE_SOURCE_DIR) / "../shared/golden/model" / name;
  return fs::exists(tree) ? tree : fs::exists(beside) ? beside : fs::path{};
}

// One file of expected tensors; remembers which of them a comparison used.
class expected_file {
public:
  explicit expected_file(const fs::path& p) : files_(p) {}

  bool has(const std::string& name) const { return files_.find(name) != nullptr; }
  const std::vector<int64_t>& shape(const std::string& name) { return info(name).shape; }
  std::vector<float> floats(const std::string& name) {
    const tensor_info& t = info(name);
    if (t.type == dtype::f32 || t.type == dtype::bf16) return read_floats(files_, t);
    std::vector<float> v;
    for (const int32_t i : ints(name)) v.push_back(static_cast<float>(i));
    return v;
  }
  std::vector<int32_t> ints(const std::string& name) {
    const tensor_info& t = info(name);
    const std::vector<std::byte> b = files_.read(t);
    std::vector<int32_t> v(b.size() / static_cast<size_t>(size_bytes(t.type)));
    REQUIRE((t.type == dtype::i32 || t.type == dtype::u8));
    for (size_t i = 0; i < v.size(); ++i) {
      if (t.type == dtype::i32)
        std::memcpy(&v[i], b.data() + 4 * i, 4);
      else
        v[i] = std::to_integer<int32_t>(b[i]);
    }
    return v;
  }
  // Names that nothing asked for.
  std::vector<std::string> unused() const {
    std::vector<std::string> names;
    for (const tensor_info& t : files_.tensors())
      if (!used_.contains(t.name)) names.push_back(t.name);
    return names;
  }

private:
  const tensor_info& info(const std::string& name) {
    const tensor_info* t = files_.find(name);
    REQUIRE_MESSAGE(t != nullptr, name);
    used_.insert(name);
    return *t;
  }
  checkpoint_files files_;
  std::set<std::string> used_;
};

// A folder that loads: weights of `variant`, config.json with the multipliers of engram.json.
struct case_folder {
  fs::path source, folder;
  std::vector<int32_t> token_map;

  case_folder(const fs::path& from, const std::string& variant) : source(from) {
    folder = fs::path(TROUPE_BINARY_DIR) / "golden" / (from.filename().string() + "-" + variant);
    fs::create_directories(folder);
    for (const auto& f : fs::directory_iterator(from / variant))
      fs::copy_file(f.path(), folder / f.path().filename(), fs::copy_options::overwrite_existing);
    simdjson::dom::parser parser;
    const simdjson::dom::element engram = parser.load((from / "engram.json").string());
    for (const int64_t id : simdjson::dom::array(engram["token_map"])) token_map.push_back(static_cast<int32_t>(id));
    std::string text = read_text(from / "config.json");
    const std::string key = "\"text_config\": {";
    text.insert(text.find(key) + key.size(),
                "\"engram_multipliers\": " + simdjson::minify(engram["multipliers"]) + ",");
    std::ofstream(folder / "config.json") << text;
  }
};

// The smallest case that has everything; several files run it.
inline const case_folder& tiny_b() {
  static const case_folder c(find_case("tiny-b"), "native");
  return c;
}

inline std::vector<int32_t> random_ids(size_t n, uint32_t seed) {
  std::vector<int32_t> ids(n);
  for (int32_t& id : ids) id = static_cast<int32_t>((seed = seed * 1664525U + 1013904223U) >> 8) % 384;
  return ids;
}

// What an observer saw, rows in order; a forward of rows p.. appends behind those before.
struct captured_tensor {
  int64_t width = 0;
  std::vector<float> values;
  std::span<const float> row(int64_t r) const {
    REQUIRE((r + 1) * width <= static_cast<int64_t>(values.size()));
    return std::span(values).subspan(static_cast<size_t>(r * width), static_cast<size_t>(width));
  }
};
using capture = std::map<std::pair<int32_t, std::string>, captured_tensor>;

inline observer capture_into(backend& be, capture& to) {
  return [&be, &to](std::string_view name, int32_t layer, tensor t) {
    captured_tensor& c = to[{layer, std::string(name)}];
    c.width = t.row_elements();
    std::vector<float> seen(static_cast<size_t>(t.n_elements()));
    be.download(seen.data(), t, t.size_bytes());
    for (const float v : seen)
      c.values.push_back(t.type == dtype::i32 ? static_cast<float>(std::bit_cast<int32_t>(v)) : v);
  };
}

// One sequence on one rank: slot and blocks are not the first ones, so that indexing errors show.
class runner {
public:
  runner(backend& be, const case_folder& from, int64_t n_positions, prefill_mode mode = prefill_mode::exact,
         int64_t tail = 0, bool vision = false, std::optional<cache_form> caches = std::nullopt)
      : checkpoint_(from.folder), tables_(checkpoint_, from.token_map, be.rank(), be.n_ranks(), 3) {
    model_options o;
    o.folder = from.folder.string();
    o.max_sequences = 3;
    o.max_rows = static_cast<int32_t>(n_positions);
    const int64_t needed = n_positions / 64 + 1;
    o.n_blocks = 2 * needed;
    o.prefill = mode;
    o.tail_tokens = tail;
    o.load_vision = vision;
    o.caches = caches;
    model_ = std::make_unique<model_v41>(be, o, nullptr);
    for (int64_t i = 0; i < needed; ++i) blocks_.push_back(static_cast<int32_t>(2 * needed - 1 - 2 * i));
  }

  model_v41& of() { return *model_; }
  engram_tables& tables() { return tables_; }

  // Rows ids[start ..], logits of the last n_logits.
  std::vector<float> step(std::span<const int32_t> ids, int64_t start, int32_t n_logits) {
    sequence_rows s;
    s.slot = slot;
    s.start = start;
    s.tokens = ids;
    s.blocks = blocks_;
    s.images = images;
    s.image_handles = handles;
    s.n_prompt = n_prompt;
    s.n_logits = n_logits;
    records_.resize(ids.size() * static_cast<size_t>(tables_.record_bytes_per_token()));
    tables_.read({&s, 1}, records_);
    const std::span<const float> logits = model_->forward({&s, 1}, records_);
    return {logits.begin(), logits.end()};
  }
  // A prompt in chunks: logits of every row, or (all_logits false) of the last one.
  std::vector<float> prefill(std::span<const int32_t> ids, size_t chunk, bool all_logits = true) {
    std::vector<float> all;
    n_prompt = static_cast<int64_t>(ids.size());
    for (size_t at = 0; at < ids.size(); at += chunk) {
      const size_t n = std::min(chunk, ids.size() - at);
      const bool last = at + n == ids.size();
      const std::vector<float> part = step(ids.subspan(at, n), static_cast<int64_t>(at),
                                           all_logits ? static_cast<int32_t>(n)
                                           : last     ? 1
                                                      : 0);
      all.insert(all.end(), part.begin(), part.end());
    }
    return all;
  }
  std::vector<int32_t> plain_greedy(std::span<const int32_t> prompt, size_t n);
  std::vector<int32_t> speculative_greedy(std::span<const int32_t> prompt, size_t n, std::vector<int32_t>& accepted);

  static constexpr int32_t slot = 1;
  int64_t n_prompt = 0;
  std::vector<image_span> images;
  std::vector<int32_t> handles;

private:
  checkpoint checkpoint_;
  engram_tables tables_;
  std::unique_ptr<model_v41> model_;
  std::vector<int32_t> blocks_;
  std::vector<std::byte> records_;
};

inline int32_t best(std::span<const float> logits) { return greedy_choice(0, 0, logits); }

inline std::vector<int32_t> runner::plain_greedy(std::span<const int32_t> prompt, size_t n) {
  std::vector<int32_t> tokens{best(prefill(prompt, prompt.size(), false))};
  while (tokens.size() < n) {
    const auto at = static_cast<int64_t>(prompt.size() + tokens.size()) - 1;
    tokens.push_back(best(step(std::span(tokens).last(1), at, 1)));
  }
  return tokens;
}

// dspark.md section 5, greedy.
inline std::vector<int32_t> runner::speculative_greedy(std::span<const int32_t> prompt, size_t n,
                                                       std::vector<int32_t>& accepted) {
  const auto vocabulary = static_cast<size_t>(model_->settings().vocabulary);
  std::vector<int32_t> tokens{best(prefill(prompt, prompt.size(), false))};
  while (tokens.size() < n) {
    const auto at = static_cast<int64_t>(prompt.size() + tokens.size()) - 1;
    const draft_anchor anchor{.slot = slot, .position = at, .token = tokens.back()};
    const draft_result draft = model_->draft({&anchor, 1});
    std::vector<int32_t> rows{tokens.back()};
    rows.insert(rows.end(), draft.tokens.begin(), draft.tokens.end());
    const std::vector<float> logits = step(rows, at, static_cast<int32_t>(rows.size()));
    int32_t taken = 0;
    for (size_t j = 0;; ++j) {
      const int32_t target = best(std::span(logits).subspan(j * vocabulary, vocabulary));
      tokens.push_back(target);
      if (j == draft.tokens.size() || draft.tokens[j] != target) break;
      ++taken;
    }
    accepted.push_back(taken);
  }
  tokens.resize(n);
  return tokens;
}

// Runs `body` for every rank of a group, each on its own thread; the first failure is thrown here. `scalar`: on the
// twins alone (one rank).
inline void on_ranks(int n_ranks, const std::function<void(backend&, int rank)>& body, bool scalar = false) {
  if (n_ranks == 1) return body(*troupe::test::make_device(1, scalar), 0);
  auto group = make_host_collectives(n_ranks, std::chrono::seconds(60));
  std::vector<std::exception_ptr> failed(static_cast<size_t>(n_ranks));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < n_ranks; ++rank)
    threads.emplace_back([&, rank] {
      try {
        const auto be = troupe::test::make_device(1, false, group[static_cast<size_t>(rank)].get());
        body(*be, rank);
      } catch (...) {
        failed[static_cast<size_t>(rank)] = std::current_exception();
        group[static_cast<size_t>(rank)]->abort();
      }
    });
  for (std::thread& t : threads) t.join();
  for (const auto& f : failed)
    if (f) std::rethrow_exception(f);
}

} // namespace golden
