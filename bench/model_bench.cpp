// A whole model without the server: milliseconds of decode and verify steps, tokens/s of prompts, beside the time that
// reading the weights once a step takes at the device's bandwidth.
// usage: bench_model FOLDER [--backend cuda|host] [--threads N] [--rows 1,2,4,8,16] [--contexts 512,8192]
//                    [--chunks 8192,2048] [--prompt 8192] [--prefill exact|tail] [--steps 21] [--bandwidth 4.2e12]
//                    [--graph-rows 64]
// Decode: `rows` sequences with one token each; verify: one sequence with four. A prompt of random ids is run once a
// context, and its state copied to the other sequences (snapshot and blocks), whose next ids are random and their own.
// Weights: all of the backbone but embedding and tables, of the routed experts those that `rows` uniform choices hit on
// average. Times are of a forward with its tokens drawn (temperature 1, top_p 0.95), on a CUDA device from captured
// graphs; Engram rows are read before, which the server does while the first layer runs.
#include "bench/bench.h"
#include "gpu/cuda_backend.h"
#include "model/deepseek_v41/checkpoint.h"
#include "model/model.h"

#include <cstdlib>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <stdexcept>
#include <string>

using namespace troupe;

namespace {

struct options {
  std::string folder, backend = "host", prefill = "exact";
  int threads = 2, steps = 21, graph_rows = 64;
  std::vector<int64_t> rows{1, 2, 4, 8, 16}, contexts{512, 8192}, chunks{8192, 2048};
  int64_t prompt = 8192;
  double bytes_per_s = 4.2e12; // device memory of an H200, measured; perf.md
};

std::vector<int64_t> list(const std::string& text) {
  std::vector<int64_t> v;
  for (size_t at = 0; at < text.size(); at = std::min(text.find(',', at), text.size() - 1) + 1)
    v.push_back(std::strtoll(text.c_str() + at, nullptr, 10));
  return v;
}

options parse(int n, char** arguments) {
  options o;
  for (int i = 1; i < n; ++i) {
    const std::string a = arguments[i];
    if (!a.starts_with("--") && o.folder.empty()) {
      o.folder = a;
      continue;
    }
    if (i + 1 == n) throw std::runtime_error(a + ": expected a value, found nothing");
    const std::string v = arguments[++i];
    if (a == "--backend")
      o.backend = v;
    else if (a == "--threads")
      o.threads = std::atoi(v.c_str());
    else if (a == "--rows")
      o.rows = list(v);
    else if (a == "--contexts")
      o.contexts = list(v);
    else if (a == "--chunks")
      o.chunks = list(v);
    else if (a == "--prompt")
      o.prompt = std::atoll(v.c_str());
    else if (a == "--prefill")
      o.prefill = v;
    else if (a == "--steps")
      o.steps = std::atoi(v.c_str());
    else if (a == "--graph-rows")
      o.graph_rows = std::atoi(v.c_str());
    else if (a == "--bandwidth")
      o.bytes_per_s = std::atof(v.c_str());
    else
      throw std::runtime_error(a + ": no such flag");
  }
  if (o.folder.empty()) throw std::runtime_error("usage: bench_model FOLDER [--backend cuda|host] ...");
  return o;
}

// Bytes that a step of `rows` tokens reads of the weights.
struct weight_bytes {
  double dense = 0, experts = 0; // of all layers
  double n_experts = 1, active = 1;
  explicit weight_bytes(const std::string& folder) {
    const deepseek_v41::checkpoint from(folder);
    n_experts = from.settings().experts;
    active = from.settings().active_experts;
    for (const tensor_info& t : from.files().tensors()) {
      const auto has = [&](const char* part) { return t.name.find(part) != std::string::npos; };
      if (has("mtp.") || has("vision.") || has("aligner.") || has("image_") || has("embed.")) continue;
      (has(".experts.") ? experts : dense) += static_cast<double>(t.size_bytes);
    }
  }
  double of(int64_t rows) const {
    return dense + experts * (1 - std::pow(1 - active / n_experts, static_cast<double>(rows)));
  }
};

class bench_run {
public:
  bench_run(const options& o) : o_(o), bytes_(o.folder), random_(7) {
    const auto most = [](const std::vector<int64_t>& v) {
      return v.empty() ? int64_t{1} : *std::max_element(v.begin(), v.end());
    };
    if (o.backend == "cuda")
      be_ = make_cuda_backend({.scratch_bytes = scratch_of_chunk(std::min(o.prompt, most(o.chunks)))});
    else
      be_ = make_host_backend({.n_threads = o.threads});
    n_ids_ = load_text_side(o.folder)->words()->size();
    n_slots_ = static_cast<int32_t>(most(o.rows));
    longest_ = std::max(most(o.contexts) + 4, o.prompt);
    const model_info info = read_model_info(o.folder);
    blocks_each_ = (longest_ + info.block_tokens - 1) / info.block_tokens;
    model_options m;
    m.folder = o.folder;
    m.max_sequences = n_slots_;
    m.n_blocks = blocks_each_ * n_slots_;
    largest_chunk_ = most(o.chunks);
    m.max_rows = static_cast<int32_t>(std::max({largest_chunk_, int64_t{n_slots_}, int64_t{4}}));
    m.prefill = o.prefill == "tail" ? prefill_mode::tail : prefill_mode::exact;
    m.load_draft = m.load_vision = false;
    const double start = bench::now_us();
    weights_ = load_model(*be_, m, nullptr);
    if (o.backend == "cuda") weights_->capture_steps(o.graph_rows);
    tables_ = open_tables(o.folder, 0, 1, n_slots_);
    std::printf("# %s, %s: loaded in %.1f s, %lld bytes on the device\n", o.folder.c_str(), be_->name().c_str(),
                (bench::now_us() - start) / 1e6, static_cast<long long>(be_->allocated_bytes()));
    std::printf("what,rows,context,median_ms,least_ms,tokens_per_s,weight_mb,limit_ms,limit_pct\n");
    for (int32_t b = 0; b < m.n_blocks; ++b) blocks_.push_back(b);
    for (int64_t i = 0; i < longest_ + 4; ++i) prompt_.push_back(random_id());
  }

  void prefill() {
    for (const int64_t chunk : o_.chunks) {
      const int64_t n = o_.prompt;
      std::vector<double> us;
      for (int i = 0; i < 4; ++i) us.push_back(run_prompt(0, n, chunk));
      us.erase(us.begin()); // the first one loads kernels
      row("prefill", chunk, n, us, static_cast<double>(n),
          static_cast<double>((n + chunk - 1) / chunk) * bytes_.of(std::min(chunk, n)));
    }
  }

  void decode() {
    for (const int64_t context : o_.contexts) {
      run_prompt(0, context, largest_chunk_);
      copy_slot(context);
      for (const int64_t n : o_.rows) step("decode", n, 1, context);
      step("verify", 1, 4, context);
    }
  }

private:
  int32_t random_id() { return static_cast<int32_t>(random_() % static_cast<uint64_t>(n_ids_)); }

  sequence_rows rows_of(int32_t slot, int64_t start, std::span<const int32_t> tokens) const {
    sequence_rows s;
    s.slot = slot;
    s.start = start;
    s.tokens = tokens;
    s.blocks = std::span(blocks_).subspan(static_cast<size_t>(slot * blocks_each_), static_cast<size_t>(blocks_each_));
    s.n_logits = 1;
    return s;
  }
  void read_tables(std::span<const sequence_rows> rows) {
    size_t n = 0;
    for (const sequence_rows& s : rows) n += s.tokens.size();
    records_.resize(n * static_cast<size_t>(tables_->record_bytes_per_token()));
    tables_->read(rows, records_);
  }

  // Microseconds from the first chunk's forward to the last one's logits; the table rows of all are read before.
  double run_prompt(int32_t slot, int64_t n, int64_t chunk) {
    std::vector<sequence_rows> chunks;
    std::vector<std::vector<std::byte>> records;
    for (int64_t at = 0; at < n; at += chunk) {
      const auto size = static_cast<size_t>(std::min(chunk, n - at));
      chunks.push_back(rows_of(slot, at, std::span(prompt_).subspan(static_cast<size_t>(at), size)));
      chunks.back().n_prompt = n;
      chunks.back().n_logits = at + chunk >= n;
      read_tables({&chunks.back(), 1});
      records.push_back(records_);
    }
    const double start = bench::now_us();
    for (size_t i = 0; i < chunks.size(); ++i) weights_->forward({&chunks[i], 1}, records[i]);
    return bench::now_us() - start;
  }

  // What slot 0 holds of `context` tokens, to all others.
  void copy_slot(int64_t context) {
    std::vector<std::byte> state;
    if (n_slots_ > 1) weights_->save_slot(0, context, state);
    for (int32_t slot = 1; slot < n_slots_; ++slot) {
      weights_->load_slot(slot, context, state);
      for (int64_t b = 0; b < blocks_each_; ++b)
        weights_->copy_block(static_cast<int32_t>(b), static_cast<int32_t>(slot * blocks_each_ + b));
    }
  }

  // `n` sequences, `each` rows of each, always at the same place: the rows are written anew.
  void step(const char* what, int64_t n, int64_t each, int64_t context) {
    std::vector<double> us;
    std::vector<int32_t> ids(static_cast<size_t>(n * each));
    std::vector<sequence_rows> rows;
    for (int64_t i = 0; i < n; ++i) {
      rows.push_back(rows_of(static_cast<int32_t>(i), context,
                             std::span(ids).subspan(static_cast<size_t>(i * each), static_cast<size_t>(each))));
      rows.back().n_logits = static_cast<int32_t>(each);
      rows.back().n_prompt = context;
      rows.back().before = std::span(prompt_).first(static_cast<size_t>(context));
    }
    sample_batch rules(weights_->info().vocabulary);
    for (int64_t i = 0; i < n * each; ++i) {
      sample_row& r = rules.rows.emplace_back();
      r.seed = static_cast<uint64_t>(i);
      r.top_p = 0.95F;
    }
    sampled_rows drawn;
    double in_graphs = 0;
    for (int i = 0; i < o_.steps + 3; ++i) {
      for (int32_t& id : ids) id = random_id();
      read_tables(rows);
      if (i == 3) in_graphs = graph_us();
      const double start = bench::now_us();
      weights_->forward_and_sample(rows, records_, rules, drawn);
      if (i >= 3) us.push_back(bench::now_us() - start);
    }
    row(what, n * each, context, us, static_cast<double>(n * each), bytes_.of(n * each));
    const double wall = std::accumulate(us.begin(), us.end(), 0.0), replayed = graph_us() - in_graphs;
    if (replayed > 0)
      std::printf("# %s %lld at %lld: %.1f %% of the time outside of the graph\n", what,
                  static_cast<long long>(n * each), static_cast<long long>(context), 100 * (1 - replayed / wall));
  }
  double graph_us() { return o_.backend == "cuda" ? replayed_us(*be_) : 0; }

  void row(const char* what, int64_t rows, int64_t context, const std::vector<double>& us, double tokens,
           double bytes) const {
    const double median = bench::median(us), least = *std::min_element(us.begin(), us.end());
    const double limit_ms = bytes / o_.bytes_per_s * 1e3;
    std::printf("%s,%lld,%lld,%.3f,%.3f,%.0f,%.0f,%.3f,%.1f\n", what, static_cast<long long>(rows),
                static_cast<long long>(context), median / 1e3, least / 1e3, tokens / median * 1e6, bytes / 1e6,
                limit_ms, 100 * limit_ms / (median / 1e3));
    std::fflush(stdout);
  }

  options o_;
  weight_bytes bytes_;
  std::mt19937_64 random_;
  int64_t n_ids_ = 0, longest_ = 0, blocks_each_ = 0, largest_chunk_ = 1;
  int32_t n_slots_ = 0;
  std::unique_ptr<backend> be_;
  std::unique_ptr<table_reader> tables_;
  std::unique_ptr<model> weights_;
  std::vector<int32_t> blocks_, prompt_;
  std::vector<std::byte> records_;
};

} // namespace

int main(int n, char** arguments) {
  try {
    bench_run bench(parse(n, arguments));
    bench.prefill();
    bench.decode();
    return 0;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "bench_model: %s\n", e.what());
    return 2;
  }
}
