// How far prefill mode tail N is from exact, over the shipped model: the first token's distribution and 16 greedy
// tokens, for the evaluation's prompts that are longer than N.
//   bench_tail EVAL.jsonl
#include "bench/bench.h"
#include "model/model.h"

#include <simdjson.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>

using namespace troupe;

namespace {

const std::string folder = TROUPE_SOURCE_DIR "/etc/models/tiny";
constexpr int64_t n_blocks = 256, chunk = 512, n_answer = 16;

struct loop {
  loop(backend& be, prefill_mode mode, int64_t tail) : tables(open_tables(folder, 0, 1, 1)) {
    model_options o;
    o.folder = folder;
    o.max_sequences = 1;
    o.n_blocks = n_blocks;
    o.max_rows = chunk;
    o.prefill = mode;
    o.tail_tokens = tail;
    o.load_draft = o.load_vision = false;
    weights = load_model(be, o, nullptr);
    for (int32_t i = 0; i < n_blocks; ++i) blocks.push_back(i);
  }
  std::span<const float> forward(std::span<const int32_t> ids, int64_t start, int64_t n_prompt, bool is_last) {
    sequence_rows s;
    s.start = start;
    s.tokens = ids;
    s.blocks = blocks;
    s.n_prompt = n_prompt;
    s.n_logits = is_last;
    records.resize(ids.size() * static_cast<size_t>(tables->record_bytes_per_token()));
    tables->read({&s, 1}, records);
    return weights->forward({&s, 1}, records);
  }
  struct answer {
    std::vector<double> first; // log-probabilities
    std::vector<int32_t> ids;
  };
  answer run(const std::vector<int32_t>& prompt) {
    answer out;
    const auto n = static_cast<int64_t>(prompt.size());
    std::span<const float> logits;
    for (int64_t at = 0; at < n; at += chunk)
      logits = forward(std::span(prompt).subspan(static_cast<size_t>(at), static_cast<size_t>(std::min(chunk, n - at))),
                       at, n, at + chunk >= n);
    const double most = *std::max_element(logits.begin(), logits.end());
    double sum = 0;
    for (const float x : logits) sum += std::exp(x - most);
    for (const float x : logits) out.first.push_back(x - most - std::log(sum));
    for (int64_t i = 0; i < n_answer; ++i) {
      out.ids.push_back(static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin()));
      if (i + 1 < n_answer) logits = forward({&out.ids.back(), 1}, n + i, n, true);
    }
    return out;
  }
  std::unique_ptr<table_reader> tables;
  std::unique_ptr<model> weights;
  std::vector<int32_t> blocks;
  std::vector<std::byte> records;
};

} // namespace

int main(int n_arguments, char** arguments) {
  if (n_arguments < 2) {
    std::fputs("usage: bench_tail EVAL.jsonl\n", stderr);
    return 2;
  }
  const auto words = load_text_side(folder)->words();
  simdjson::dom::parser parser;
  std::vector<std::vector<int32_t>> prompts;
  for (auto line : parser.load_many(arguments[1], size_t{1} << 24)) {
    simdjson::dom::array images;
    if (line["images"].get(images) == simdjson::SUCCESS) continue;
    auto ids = words->encode(std::string_view(line["prompt"].get_string()));
    if (ids.size() < 1200) prompts.push_back(std::move(ids)); // the few longer ones would take most of the time
  }
  const auto be = make_host_backend({.n_threads = 1});
  loop exact(*be, prefill_mode::exact, 128);
  std::vector<loop::answer> wanted;
  for (const auto& p : prompts) wanted.push_back(exact.run(p));
  std::printf("tail_tokens,prompts,same_first_token_pct,same_16_tokens_pct,median_kl,largest_kl\n");
  for (const int64_t tail : {16, 32, 64, 128, 256, 512}) {
    loop some(*be, prefill_mode::tail, tail);
    std::vector<double> kls;
    int64_t n_first = 0, n_all = 0;
    for (size_t i = 0; i < prompts.size(); ++i) {
      if (static_cast<int64_t>(prompts[i].size()) <= tail) continue; // the same by construction
      const auto got = some.run(prompts[i]);
      double kl = 0;
      for (size_t k = 0; k < got.first.size(); ++k)
        kl += std::exp(wanted[i].first[k]) * (wanted[i].first[k] - got.first[k]);
      kls.push_back(kl);
      n_first += got.ids[0] == wanted[i].ids[0];
      n_all += got.ids == wanted[i].ids;
    }
    if (kls.empty()) continue;
    const auto n = static_cast<double>(kls.size());
    std::printf("%lld,%zu,%.1f,%.1f,%.2g,%.2g\n", static_cast<long long>(tail), kls.size(),
                100 * static_cast<double>(n_first) / n, 100 * static_cast<double>(n_all) / n, bench::median(kls),
                *std::max_element(kls.begin(), kls.end()));
    std::fflush(stdout);
  }
  return 0;
}
