// Snapshots of a slot: going on from one equals never having stopped, bit for bit, wherever it was taken.
#include "tests/model/golden_case.h"
#include "tests/near.h"

#include <cstring>

using namespace golden;

namespace {

class stepper {
public:
  explicit stepper(backend& be, bool with_draft = true, int64_t tail_tokens = 0,
                   std::optional<cache_form> caches = std::nullopt)
      : files_(tiny_b().folder), tables_(files_, tiny_b().token_map, be.rank(), be.n_ranks(), 4) {
    model_options o;
    o.folder = tiny_b().folder.string();
    o.max_sequences = 4;
    o.n_blocks = 12;
    o.max_rows = 200;
    o.load_draft = with_draft;
    if (tail_tokens > 0) o.prefill = prefill_mode::tail;
    o.tail_tokens = tail_tokens;
    o.caches = caches;
    model_ = std::make_unique<model_v41>(be, o, nullptr);
  }
  // Logits of the last `n_logits` of the rows [start, start + n) of `ids`.
  std::vector<float> step(int32_t slot, const std::vector<int32_t>& blocks, const std::vector<int32_t>& ids,
                          int64_t start, int64_t n, int32_t n_logits, int64_t n_before = 0) {
    sequence_rows s;
    s.slot = slot;
    s.start = start;
    s.tokens = std::span(ids).subspan(static_cast<size_t>(start), static_cast<size_t>(n));
    s.before = std::span(ids).subspan(static_cast<size_t>(start - n_before), static_cast<size_t>(n_before));
    s.blocks = blocks;
    s.n_prompt = static_cast<int64_t>(ids.size());
    s.n_logits = n_logits;
    std::vector<std::byte> records(static_cast<size_t>(n * tables_.record_bytes_per_token()));
    tables_.read({&s, 1}, records);
    const auto out = model_->forward({&s, 1}, records);
    return {out.begin(), out.end()};
  }
  model_v41& of() { return *model_; }
  engram_tables& tables() { return tables_; }

private:
  checkpoint files_;
  engram_tables tables_;
  std::unique_ptr<model_v41> model_;
};

bool bits_equal(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

constexpr int64_t n_all = 170;
constexpr std::pair<bool, cache_form> forms[] = {
    {true, cache_form::floats}, {false, cache_form::floats}, {true, cache_form::records}}; // with drafts or without
const std::vector<int32_t> own{3, 5, 1}, other{8, 0, 7};                                   // block tables

} // namespace

TEST_CASE("snapshot: a sequence goes on from any position as if it had never stopped, in another slot") {
  const auto ids = random_ids(n_all, 11);
  on_ranks(1, [&](backend& be, int) {
    for (const auto& [with_draft, form] : forms) {
      CAPTURE(with_draft);
      stepper whole(be, with_draft, 0, form), parts(be, with_draft, 0, form);
      const auto logits = whole.step(0, own, ids, 0, n_all, static_cast<int32_t>(n_all));
      const auto vocabulary = static_cast<size_t>(whole.of().settings().vocabulary);
      const int64_t slack = parts.of().snapshot_slack();
      REQUIRE(slack >= 1);
      std::vector<std::byte> bytes;
      for (const int64_t n : {1, 2, 3, 31, 32, 33, 63, 64, 65, 127, 128, 129, 150, 168})
        for (const int64_t behind : {int64_t{0}, int64_t{1}, slack}) {
          if (n + behind >= n_all) continue;
          CAPTURE(n);
          CAPTURE(behind);
          parts.step(2, own, ids, 0, n + behind, 0);
          parts.of().save_slot(2, n, bytes);
          CHECK(static_cast<int64_t>(bytes.size()) <= parts.of().snapshot_bytes());
          for (size_t b = 0; b < own.size(); ++b) parts.of().copy_block(own[b], other[b]);
          parts.step(1, other, random_ids(40, 5), 0, 40, 0); // what was in the slot leaves no trace
          for (size_t b = 0; b < own.size(); ++b) parts.of().copy_block(own[b], other[b]);
          parts.of().load_slot(1, n, bytes);
          const auto rest =
              parts.step(1, other, ids, n, n_all - n, static_cast<int32_t>(n_all - n), std::min<int64_t>(n, 16));
          CHECK(bits_equal(rest, {logits.begin() + static_cast<std::ptrdiff_t>(n * static_cast<int64_t>(vocabulary)),
                                  logits.end()}));
        }
      if (!with_draft) continue;
      const draft_anchor a{.slot = 0, .position = n_all, .token = 7}, b{.slot = 1, .position = n_all, .token = 7};
      const auto want = whole.of().draft({&a, 1}), got = parts.of().draft({&b, 1});
      CHECK(want.tokens == got.tokens);
      CHECK(bits_equal(want.logits, got.logits)); // draft rings came along
    }
  });
}

TEST_CASE("snapshot: blocks that went through host memory are the same, bit for bit, in other blocks") {
  const auto ids = random_ids(n_all, 15);
  on_ranks(1, [&](backend& be, int) {
    for (const auto& [with_draft, form] : forms) {
      CAPTURE(with_draft);
      stepper whole(be, with_draft, 0, form), parts(be, with_draft, 0, form);
      const auto logits = whole.step(0, own, ids, 0, n_all, 40);
      std::vector<std::byte> window;
      parts.step(2, own, ids, 0, 130, 0);
      parts.of().save_slot(2, 130, window);
      std::vector<std::vector<std::byte>> saved(own.size());
      for (size_t b = 0; b < own.size(); ++b) parts.of().save_block(own[b], saved[b]);
      for (const auto& bytes : saved) CHECK(static_cast<int64_t>(bytes.size()) == parts.of().block_bytes());
      CHECK(parts.of().block_bytes() == bytes_per_block(parts.of().settings(), form, 64));
      parts.step(0, own, random_ids(n_all, 16), 0, n_all, 0); // the blocks themselves go to somebody else
      for (size_t b = 0; b < own.size(); ++b) parts.of().load_block(other[b], saved[b]);
      std::vector<std::byte> again;
      for (size_t b = 0; b < own.size(); ++b) {
        parts.of().save_block(other[b], again);
        CHECK(again == saved[b]);
      }
      parts.of().load_slot(1, 130, window);
      CHECK(bits_equal(parts.step(1, other, ids, 130, n_all - 130, 40, 16), logits));
      try {
        parts.of().load_block(0, std::span(saved[0]).first(5));
        FAIL("expected a refusal");
      } catch (const std::runtime_error& e) { CHECK(std::string(e.what()).find("found 5") != std::string::npos); }
    }
  });
}

TEST_CASE("snapshot: in tail mode an identical prompt goes on with the same bits") {
  const auto ids = random_ids(n_all, 12);
  on_ranks(1, [&](backend& be, int) {
    for (const int64_t tail : {1, 20, 100}) {
      CAPTURE(tail);
      stepper whole(be, true, tail), parts(be, true, tail);
      const auto want = whole.step(0, own, ids, 0, n_all, 1);
      std::vector<std::byte> bytes;
      for (const int64_t n : {20, 69, 70, 71, 149, 150, 151, 169}) {
        CAPTURE(n);
        parts.step(2, own, ids, 0, n, 0);
        parts.of().save_slot(2, n, bytes);
        parts.of().load_slot(1, n, bytes);
        CHECK(bits_equal(parts.step(1, own, ids, n, n_all - n, 1, 16), want));
      }
    }
  });
}

TEST_CASE("context rows: made late they have the bits of rows made step by step, in guesses and in snapshots") {
  auto ids = random_ids(n_all, 21);
  const auto wrong = random_ids(n_all, 22);
  on_ranks(1, [&](backend& be, int) {
    for (const auto form : {cache_form::floats, cache_form::records}) {
      stepper late(be, true, 0, form), each(be, true, 0, form);
      const auto ask = [](stepper& s, int32_t slot, int64_t position) {
        const draft_anchor a{.slot = slot, .position = position, .token = 7};
        return s.of().draft({&a, 1});
      };
      for (stepper* s : {&late, &each}) s->step(0, own, ids, 0, 50, 0);
      int64_t n_compared = 0;
      for (int64_t at = 50; at < n_all; ++at) {
        CAPTURE(at);
        const bool rejects = at % 7 == 3 && at + 6 < n_all; // five guesses more, all wrong
        std::vector<int32_t> rows = ids;
        if (rejects) std::copy(wrong.begin() + at + 1, wrong.begin() + at + 6, rows.begin() + at + 1);
        for (stepper* s : {&late, &each}) s->step(0, own, rows, at, rejects ? 6 : 1, 1);
        const auto want = ask(each, 0, at + 1);
        if (at != 53 && at != 60 && at != 61 && at != 144 && at != n_all - 1) continue; // up to a ring and more
        const auto got = ask(late, 0, at + 1);
        CHECK(want.tokens == got.tokens);
        CHECK(bits_equal(want.logits, got.logits));
        ++n_compared;
      }
      CHECK(n_compared == 5);
      std::vector<std::byte> a, b;
      for (stepper* s : {&late, &each}) s->step(1, other, ids, 0, 90, 0); // a prompt in one and in many steps
      late.step(1, other, ids, 90, 30, 0);
      for (int64_t at = 90; at < 120; ++at) each.step(1, other, ids, at, 1, 0), ask(each, 1, at + 1);
      for (const int64_t n : {int64_t{119}, int64_t{120}}) {
        late.of().save_slot(1, n, a);
        each.of().save_slot(1, n, b);
        CHECK(a == b);
      }
      late.of().load_slot(2, 120, a); // and a slot that begins with a snapshot owes nothing
      const auto want = ask(each, 1, 120), got = ask(late, 2, 120);
      CHECK(bits_equal(want.logits, got.logits));
    }
  });
}

TEST_CASE("snapshot: what does not fit is refused by name") {
  const auto ids = random_ids(n_all, 13);
  on_ranks(1, [&](backend& be, int) {
    stepper m(be), without(be, false);
    m.step(0, own, ids, 0, 51, 0);
    std::vector<std::byte> bytes;
    m.of().save_slot(0, 51, bytes);
    const auto refused = [&](model_v41& by, int64_t n, std::vector<std::byte> b, const std::string& why) {
      try {
        by.load_slot(0, n, b);
        FAIL("expected a refusal: " << why);
      } catch (const std::runtime_error& e) { CHECK(std::string(e.what()).find(why) != std::string::npos); }
      try {
        by.check_snapshot(n, b);
        FAIL("expected the same refusal beforehand: " << why);
      } catch (const std::runtime_error& e) { CHECK(std::string(e.what()).find(why) != std::string::npos); }
    };
    refused(m.of(), 50, bytes, "tokens: expected 50, found 51");
    refused(m.of(), 51, {bytes.begin(), bytes.begin() + 7}, "found 7");
    refused(m.of(), 51, {bytes.begin(), bytes.end() - 1}, "bytes: expected");
    refused(without.of(), 51, bytes, "rings: expected");
    auto broken = bytes;
    broken[0] ^= std::byte{1};
    refused(m.of(), 51, broken, "magic");
    broken = bytes;
    broken[4] = std::byte{9};
    refused(m.of(), 51, broken, "version: expected 1, found 9");
    broken = bytes;
    broken[16] = std::byte{99};
    refused(m.of(), 51, broken, "floor");
  });
}

TEST_CASE("snapshot: side tables are entered with the tokens before the row, or refuse") {
  const auto ids = random_ids(n_all, 14);
  on_ranks(1, [&](backend& be, int) {
    stepper whole(be), parts(be);
    const image_span image{.start = 60, .grid_h = 2, .grid_w = 3}; // positions 60 .. 69
    sequence_rows s;
    s.tokens = ids;
    s.images = {&image, 1};
    const auto want = whole.tables().row_ids({&s, 1});
    const size_t per_row = want.size() / ids.size();
    for (const int64_t n : {1, 2, 3, 50, 61, 66, 70, 71, 72, 73, 74}) {
      CAPTURE(n);
      sequence_rows rest = s;
      rest.slot = 3;
      rest.start = n;
      rest.tokens = std::span(ids).subspan(static_cast<size_t>(n));
      const int64_t n_before = std::min<int64_t>(n, 16);
      rest.before = std::span(ids).subspan(static_cast<size_t>(n - n_before), static_cast<size_t>(n_before));
      const auto got = parts.tables().row_ids({&rest, 1});
      CHECK(std::equal(got.begin(), got.end(), want.begin() + static_cast<std::ptrdiff_t>(per_row) * n, want.end()));
    }
    sequence_rows rest = s;
    rest.start = 50;
    rest.before = std::span(ids).subspan(49, 1);
    CHECK_THROWS_AS(parts.tables().row_ids({&rest, 1}), std::system_error);
  });
}
