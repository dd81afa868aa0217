// The shipped model through the public interface: greedy continuations of its own evaluation set.
#include "model/deepseek_v41/checkpoint.h"
#include "model/deepseek_v41/output_parser.h"
#include "model/model.h"
#include "tests/test_device.h"

#include <doctest/doctest.h>
#include <simdjson.h>

#include <algorithm>
#include <string>
#include <vector>

using namespace troupe;

namespace {

const std::string tiny_model = TROUPE_SOURCE_DIR "/etc/models/tiny";

// One sequence at a time, greedy, as a scheduler would drive the model.
class chat_of_one {
public:
  chat_of_one() : be_(test::make_device(2)) {
    model_options o;
    o.folder = tiny_model;
    o.max_sequences = 2;
    o.n_blocks = n_blocks;
    o.max_rows = chunk;
    o.load_vision = false;
    o.load_draft = false;
    model_ = load_model(*be_, o, nullptr);
    tables_ = open_tables(tiny_model, 0, 1, o.max_sequences);
    for (int32_t i = 0; i < n_blocks; ++i) blocks_.push_back(n_blocks - 1 - i);
  }

  std::vector<int32_t> greedy(std::span<const int32_t> prompt, size_t max_tokens) {
    std::vector<int32_t> out;
    n_prompt_ = static_cast<int64_t>(prompt.size());
    int32_t next = 0;
    for (size_t at = 0; at < prompt.size(); at += chunk)
      next = step(prompt.subspan(at, std::min<size_t>(chunk, prompt.size() - at)), static_cast<int64_t>(at));
    while (true) {
      out.push_back(next);
      if (next == model_->info().eos || out.size() == max_tokens) return out;
      next = step(std::span(out).last(1), static_cast<int64_t>(prompt.size() + out.size()) - 1);
    }
  }

private:
  static constexpr int32_t chunk = 128, n_blocks = 256;

  int32_t step(std::span<const int32_t> ids, int64_t start) {
    sequence_rows s;
    s.slot = 1;
    s.start = start;
    s.tokens = ids;
    s.blocks = blocks_;
    s.n_prompt = n_prompt_;
    s.n_logits = 1;
    records_.resize(ids.size() * static_cast<size_t>(tables_->record_bytes_per_token()));
    tables_->read({&s, 1}, records_);
    const std::span<const float> logits = model_->forward({&s, 1}, records_);
    return static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
  }

  std::unique_ptr<backend> be_;
  std::unique_ptr<model> model_;
  std::unique_ptr<table_reader> tables_;
  std::vector<int32_t> blocks_;
  std::vector<std::byte> records_;
  int64_t n_prompt_ = 0;
};

} // namespace

TEST_CASE("tiny model: a product by greedy decoding") {
  chat_of_one chat;
  const auto words = load_text_side(tiny_model)->words();
  const std::vector<int32_t> prompt =
      words->encode("<\xEF\xBD\x9C"
                    "begin\xE2\x96\x81of\xE2\x96\x81sentence\xEF\xBD\x9C><\xEF\xBD\x9C"
                    "User\xEF\xBD\x9C>What is 17*19? Reply with the integer only.<\xEF\xBD\x9C"
                    "Assistant\xEF\xBD\x9C></think>");
  CHECK(prompt.size() == 19);
  const std::vector<int32_t> ids = chat.greedy(prompt, 64);
  CHECK(words->decode(ids, true) == "323");
}

TEST_CASE("tiny model: every stable item of the evaluation set without images" * doctest::test_suite("slow")) {
  chat_of_one chat;
  const auto words = load_text_side(tiny_model)->words();
  simdjson::dom::parser parser;
  int n_ran = 0, n_images = 0, n_unstable = 0;
  for (const simdjson::dom::element item :
       parser.load_many(TROUPE_SOURCE_DIR "/tests/golden/tiny/eval.jsonl", 1 << 22)) {
    const std::string_view prompt = item["prompt"], id = item["id"];
    const bool stable = item["stable"];
    const std::vector<int32_t> ids = words->encode(prompt);
    if (!stable)
      ++n_unstable;
    else if (static_cast<int64_t>(ids.size()) != int64_t{item["prompt_tokens"]})
      ++n_images; // spans expand in the chat path
    if (!stable || static_cast<int64_t>(ids.size()) != int64_t{item["prompt_tokens"]}) continue;
    ++n_ran;
    std::vector<int32_t> expected;
    for (const int64_t i : simdjson::dom::array(item["expected_ids"])) expected.push_back(static_cast<int32_t>(i));
    INFO(id);
    CHECK(chat.greedy(ids, static_cast<size_t>(int64_t{item["max_tokens"]})) == expected);
  }
  MESSAGE("evaluation items: " << n_ran << " ran, " << n_images << " with images and " << n_unstable
                               << " unstable left out");
  CHECK(n_ran > 200);
}

TEST_CASE("tiny model: its checkpoint is complete and nothing in it is unknown") {
  const deepseek_v41::checkpoint_report report = deepseek_v41::verify_checkpoint(tiny_model);
  CHECK_MESSAGE(report.problems.empty(), report.text());
  CHECK(report.unknown.empty());
  CHECK(report.n_packed == 192);
  CHECK(report.encodings.at("EXL3 mul1 K=4") == 192);
  // features 7.8: the drafter's precision is told beside all others'; what it is worth, acceptance by place in
  // /metrics.
  CHECK(report.draft_encodings.size() == 3);
  for (const auto& [name, n] : report.draft_encodings) {
    CHECK(n <= report.encodings.at(name));
    CHECK(report.text().find("of them " + std::to_string(n) + " of the drafter " + name) != std::string::npos);
  }
}

TEST_CASE("tiny model: the text side renders, encodes and parses, the plan of a cache is the model's") {
  const auto side = load_text_side(tiny_model);
  chat_input in;
  in.messages.emplace_back().parts.emplace_back().text = "Hi"; // a user's message
  in.thinking = false;
  CHECK(side->words()->encode(side->render(in), false, 100).size() > 4);
  CHECK(side->think_end_id() > 0);
  CHECK_FALSE(side->suppressed_ids().empty());
  const model_info info = read_model_info(tiny_model);
  CHECK(info.name == "tiny");
  CHECK(info.has_vision);
  CHECK(info.has_draft);
  CHECK(info.draft_block == 5);
  CHECK(info.default_top_p == doctest::Approx(0.95));
  const state_bytes s = plan_state(tiny_model, host_caches);
  CHECK(s.per_block == (32 + 64) * (128 + 128) * 4); // ratio 2 and ratio 1 source, latent and key
  CHECK(s.per_slot > 0);
}

TEST_CASE("tiny model: a slot takes the bytes that the plan says, its late context rows among them") {
  for (const bool with_draft : {true, false}) {
    CAPTURE(with_draft);
    const auto allocated = [&](int32_t n_sequences) {
      const auto device = make_host_backend({.n_threads = 1});
      model_options o;
      o.folder = tiny_model;
      o.max_sequences = n_sequences;
      o.n_blocks = 4;
      o.max_rows = 64;
      o.load_draft = with_draft;
      const auto weights = load_model(*device, o, nullptr);
      return device->allocated_bytes();
    };
    const int64_t of_one = (allocated(9) - allocated(1)) / 8, planned = plan_state(tiny_model, host_caches).per_slot;
    CHECK(of_one <= planned + (16 << 10)); // and its lines of block tables and of the drafter's batch
    if (with_draft) CHECK(of_one >= planned);
  }
}
