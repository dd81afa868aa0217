// Images of a model with more of them than buffers: the same bits at any chunk size, and no memory taken by a step.
#include "model/deepseek_v41/config.h"
#include "model/model.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <vector>

using namespace troupe;

namespace {

const std::string folder = TROUPE_SOURCE_DIR "/etc/models/tiny";

struct seeing_model {
  seeing_model() : device(make_host_backend({.n_threads = 1})) {
    model_options o;
    o.folder = folder;
    o.max_sequences = 1;
    o.n_blocks = 8;
    o.max_rows = 512;
    o.load_draft = false;
    weights = load_model(*device, o, nullptr);
    tables = open_tables(folder, 0, 1, 1);
    for (int32_t i = 0; i < 8; ++i) blocks.push_back(7 - i);
  }
  // An image of grid_h x grid_w tokens, at the end of the prompt, and a word behind it.
  void show(int32_t grid_h, int32_t grid_w) {
    const auto side = static_cast<int32_t>(vision.patch * vision.downsample);
    planned_image p{grid_w * side, grid_h * side, grid_h, grid_w, 0, {}};
    p.rgb.resize(static_cast<size_t>(p.width) * static_cast<size_t>(p.height) * 3);
    for (auto& x : p.rgb) x = static_cast<uint8_t>((seed = seed * 1664525U + 1013904223U) >> 24);
    spans.push_back({static_cast<int64_t>(prompt.size()), grid_h, grid_w, static_cast<int32_t>(spans.size())});
    prompt.insert(prompt.end(), static_cast<size_t>(p.n_tokens()), weights->info().image_token);
    prompt.push_back(300);
    handles.push_back(weights->take_image(std::move(p)));
  }
  void drop_all() {
    for (const auto h : handles) weights->drop_image(h);
    handles.clear();
    spans.clear();
    prompt.assign(3, 300);
  }
  std::vector<float> run(size_t chunk) {
    std::vector<float> out;
    for (size_t at = 0; at < prompt.size(); at += chunk) {
      sequence_rows s;
      s.start = static_cast<int64_t>(at);
      s.tokens = std::span(prompt).subspan(at, std::min(chunk, prompt.size() - at));
      s.before = std::span(prompt).first(at).last(std::min<size_t>(at, 16));
      s.blocks = blocks;
      s.images = spans;
      s.image_handles = handles;
      s.n_prompt = static_cast<int64_t>(prompt.size());
      s.n_logits = 1;
      records.resize(s.tokens.size() * static_cast<size_t>(tables->record_bytes_per_token()));
      tables->read({&s, 1}, records);
      const auto logits = weights->forward({&s, 1}, records);
      out.assign(logits.begin(), logits.end());
    }
    return out;
  }

  const deepseek_v41::vision_config vision = deepseek_v41::read_config(folder).vision;
  std::unique_ptr<backend> device;
  std::unique_ptr<model> weights;
  std::unique_ptr<table_reader> tables;
  std::vector<int32_t> blocks, prompt{300, 300, 300}, handles;
  std::vector<image_span> spans;
  std::vector<std::byte> records;
  uint32_t seed = 1;
};

} // namespace

TEST_CASE("image_rows: more images than buffers give the same bits at any chunk size") {
  seeing_model m;
  for (int32_t i = 0; i < 7; ++i) m.show(1 + i % 3, 2 + i % 4);
  const auto whole = m.run(m.prompt.size());
  CHECK(std::count(whole.begin(), whole.end(), whole.front()) < 10); // they say something
  for (const size_t chunk : {1, 5, 16, 64}) {
    CAPTURE(chunk);
    CHECK(m.run(chunk) == whole);
  }
  m.drop_all();
  m.show(2, 3);
  const auto other = m.run(m.prompt.size());
  CHECK(other != whole);
  CHECK(m.run(4) == other);
}

TEST_CASE("image_rows: steps with any number of images take no memory of the device") {
  seeing_model m;
  const auto n_bytes = m.device->allocated_bytes();
  for (const int n_images : {1, 9, 4, 12}) {
    for (int i = 0; i < n_images; ++i) m.show(2, 2);
    m.run(m.prompt.size());
    CHECK(m.device->allocated_bytes() == n_bytes);
    m.drop_all();
  }
  CHECK(m.device->allocated_bytes() == n_bytes);
}

TEST_CASE("image_rows: what does not fit the model is refused by its size") {
  seeing_model m;
  CHECK_THROWS_WITH(m.weights->take_image({1, 1, 1, 1, 0, {0, 0, 0}}), doctest::Contains("whole patches"));
  CHECK_THROWS_WITH(m.show(100, 100), doctest::Contains("tokens, found 10102"));
}
