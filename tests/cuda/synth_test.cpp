// A few layers of the released widths from synthetic weights, on the device beside the host: what golden models of
// small widths cannot show (strides, scratch, tiles and sums of 5120 and 8192 terms, outlier channels, dead outputs).
#include "model/deepseek_v41/model_v41.h"
#include "model/deepseek_v41/synth.h"
#include "storage/parallel.h"
#include "tests/near.h"
#include "tests/safetensors_writer.h"
#include "tests/test_device.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <string>

using namespace troupe;

namespace {

constexpr int64_t n_prompt = 1100, chunk = 640; // past 512 entries of both ratios, so that the indexers choose
constexpr int32_t n_blocks = 18;

// Rows of the stream and what folds it after each layer, and logits: of a prompt's end and of one more row.
struct run_result {
  std::map<int32_t, std::vector<float>> streams, folds; // by layer, rows of all chunks one after another
  std::vector<float> prompt_logits, row_logits;
};

// `from`: every layer begins with the streams of that run, lest what one layer rounds otherwise grows in the next ones
// (random layers do not damp it).
run_result run_on(backend& be, const std::string& folder, const run_result* from = nullptr) {
  model_options o;
  o.folder = folder;
  o.max_sequences = 1;
  o.n_blocks = n_blocks;
  o.max_rows = static_cast<int32_t>(chunk);
  deepseek_v41::model_v41 m(be, o, nullptr);
  const auto tables = open_tables(folder, 0, 1, 1);
  run_result r;
  m.observe(
      [&](std::string_view name, int32_t layer, tensor t) {
        if (name != "stream" && name != "hc_ffn_pre") return; // the two that a layer hands to the next
        std::vector<float>& all = (name == "stream" ? r.streams : r.folds)[layer];
        const size_t at = all.size();
        all.resize(at + static_cast<size_t>(t.n_elements()));
        be.download(all.data() + at, t, t.size_bytes());
        if (from == nullptr) return;
        const std::vector<float>& given = (name == "stream" ? from->streams : from->folds).at(layer);
        be.upload(t, given.data() + at, t.size_bytes());
      },
      n_blocks * 64);
  std::vector<int32_t> ids, blocks;
  for (int64_t i = 0; i <= n_prompt; ++i) ids.push_back(static_cast<int32_t>((i * i * 31 + i * 7) % 2000));
  for (int32_t b = 0; b < n_blocks; ++b) blocks.push_back((b * 5) % n_blocks);
  std::vector<std::byte> records;
  const auto step = [&](int64_t start, int64_t n, int32_t n_logits) {
    sequence_rows s;
    s.start = start;
    s.tokens = std::span(ids).subspan(static_cast<size_t>(start), static_cast<size_t>(n));
    s.blocks = blocks;
    s.n_prompt = n_prompt;
    s.n_logits = n_logits;
    records.resize(static_cast<size_t>(n * tables->record_bytes_per_token()));
    tables->read({&s, 1}, records);
    const auto logits = m.forward({&s, 1}, records);
    return std::vector<float>(logits.begin(), logits.end());
  };
  step(0, chunk, 0);
  r.prompt_logits = step(chunk, n_prompt - chunk, 32);
  r.row_logits = step(n_prompt, 1, 1);
  return r;
}

// Relative error of each row, ascending.
std::vector<double> row_errors(std::span<const float> got, std::span<const float> want, size_t width) {
  std::vector<double> errors;
  for (size_t at = 0; at < want.size(); at += width)
    errors.push_back(test::rms_error(got.subspan(at, width), want.subspan(at, width)));
  std::sort(errors.begin(), errors.end());
  return errors;
}

void compare(const std::string& what, std::span<const float> got, std::span<const float> want, size_t width) {
  REQUIRE(got.size() == want.size());
  const std::vector<double> errors = row_errors(got, want, width);
  // A row in twenty may choose another expert or entry at a near tie, or round a cache element the other way; most rows
  // differ by the rounding of activations alone.
  const double median = errors[errors.size() / 2], most = errors[errors.size() * 9 / 10];
  MESSAGE("synthetic layers of released widths, " << what << " median row: rms error " << median << ", bound " << 0.01);
  MESSAGE("synthetic layers of released widths, " << what << " 90 % row: rms error " << most << ", bound " << 0.05);
  CHECK_MESSAGE(median <= 0.01, what);
  CHECK_MESSAGE(most <= 0.05, what);
}

} // namespace

TEST_CASE("synth: layers of released widths give on the device what they give on the host") {
  const test::temp_folder to;
  deepseek_v41::synth_options o;
  o.folder = to.path() / "made";
  o.tokenizer = TROUPE_SOURCE_DIR "/etc/models/tiny/tokenizer.json";
  o.settings.layers = {0, 1, 2, 20, 24}; // Engram, both ratios, candidates made and used
  o.experts = 12;
  o.vocabulary = 2048;
  o.engram_rows = 24000;
  deepseek_v41::make_synth(o, [](uint64_t, uint64_t) {});
  run_result want, got;
  {
    const auto host = make_host_backend({.n_threads = static_cast<int>(n_cores())});
    want = run_on(*host, o.folder.string());
  }
  const auto device = test::make_device(static_cast<int>(n_cores()));
  got = run_on(*device, o.folder.string(), &want);
  constexpr size_t stream_width = 4 * 5120;
  for (const auto& [layer, rows] : want.streams)
    compare("stream after layer " + std::to_string(layer), got.streams[layer], rows, stream_width);
  // Of the given last streams: fold, norm and head alone.
  compare("logits of a prompt", got.prompt_logits, want.prompt_logits, 2048);
  compare("logits of one row", got.row_logits, want.row_logits, 2048);
}
