// What the table reader is asked: where images lie, and what came before a row in the middle of a sequence.
#include "actors/request.h"
#include "tests/actors/world.h"

#include <doctest/doctest.h>

using namespace troupe;

namespace {

struct asked {
  struct row {
    int64_t start = 0;
    std::vector<int32_t> tokens, before;
    std::vector<image_span> images;
  };
  std::vector<row> rows;
};

class asked_tables : public table_reader {
public:
  explicit asked_tables(std::shared_ptr<asked> a) : asked_(std::move(a)) {}
  int64_t record_bytes_per_token() const override { return 1; }
  void read(std::span<const sequence_rows> rows, std::span<std::byte>) override {
    for (const auto& r : rows)
      asked_->rows.push_back({r.start,
                              {r.tokens.begin(), r.tokens.end()},
                              {r.before.begin(), r.before.end()},
                              {r.images.begin(), r.images.end()}});
  }

private:
  std::shared_ptr<asked> asked_; // shared with the test
};

} // namespace

TEST_CASE("engram_fetch: every row of a sequence knows its images, and its first one what the cache had before it") {
  world w;
  const auto seen = std::make_shared<asked>();
  scripted_ring r(w, scripted_ring::small_limits(), 1, [&](ring_config& c) {
    c.open_tables = [seen](int32_t) { return std::make_unique<asked_tables>(seen); };
    c.prefix.snapshot_bytes = 1;
    c.prefix.snapshot_memory_bytes = 100;
    c.prefix.snapshot_slack = 1;
  });
  r.parts.info.has_vision = true;
  r.parts.prepare = w.own(spawn_prepare(w.system(), {r.parts.config, r.parts.info, r.parts.max_context}, r.text, 0));
  r.say(" seen it");
  const auto ask = [&] {
    seen->rows.clear();
    chat_request request = r.completion("", 20);
    request.is_chat = true;
    request.prompts.clear();
    request.chat.thinking = false;
    auto& m = request.chat.messages.emplace_back();
    m.parts.push_back({"look at this and say what you see in it", -1});
    m.parts.push_back({"", 0});
    request.image_files = {"1234567"};
    const auto out = std::make_shared<recording_sink>();
    r.start(request, out);
    w.run();
    REQUIRE(out->error.message == "");
    return out->usage;
  };
  const auto first = ask();
  CHECK(first.cached_tokens == 0);
  std::vector<int32_t> prompt;
  for (const auto& row : seen->rows) {
    REQUIRE(row.images.size() == 1);
    CHECK(row.images[0].grid_w == 7);
    CHECK(row.before.empty());
    prompt.insert(prompt.end(), row.tokens.begin(), row.tokens.end());
  }
  prompt.resize(static_cast<size_t>(first.prompt_tokens));

  const auto second = ask();
  CHECK(second.cached_tokens == first.prompt_tokens - 1);
  REQUIRE(seen->rows.size() > 1);
  const auto& begin = seen->rows[0];
  CHECK(begin.start == second.cached_tokens);
  CHECK(begin.images.size() == 1);
  CHECK(begin.before == std::vector<int32_t>(prompt.end() - 17, prompt.end() - 1));
  CHECK(seen->rows[1].before.empty());
  CHECK(r.is_idle());
}
