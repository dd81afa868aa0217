// Several sequences in one step, slots that are used again, ranks: what a scheduler relies on.
#include "tests/model/golden_case.h"
#include "tests/near.h"

using namespace golden;

namespace {

// Part of a sequence that runs in a step.
struct piece {
  int32_t slot;
  std::vector<int32_t> blocks;
  std::span<const int32_t> ids; // whole sequence
  int64_t start, n;
};

class batch {
public:
  explicit batch(backend& be, bool load_draft = true)
      : files_(tiny_b().folder), tables_(files_, tiny_b().token_map, be.rank(), be.n_ranks(), 4) {
    model_options o;
    o.folder = tiny_b().folder.string();
    o.max_sequences = 4;
    o.n_blocks = 8;
    o.max_rows = 128;
    o.load_draft = load_draft;
    model_ = std::make_unique<model_v41>(be, o, nullptr);
  }
  // Logits of all rows of each piece, one vector a piece.
  std::vector<std::vector<float>> step(std::span<const piece> pieces) {
    std::vector<sequence_rows> rows;
    int64_t n = 0;
    for (const piece& p : pieces) {
      sequence_rows& s = rows.emplace_back();
      s.slot = p.slot;
      s.start = p.start;
      s.tokens = p.ids.subspan(static_cast<size_t>(p.start), static_cast<size_t>(p.n));
      s.blocks = p.blocks;
      s.n_logits = static_cast<int32_t>(p.n);
      n += p.n;
    }
    std::vector<std::byte> records(static_cast<size_t>(n * tables_.record_bytes_per_token()));
    tables_.read(rows, records);
    const std::span<const float> all = model_->forward(rows, records);
    std::vector<std::vector<float>> out;
    size_t at = 0;
    for (const piece& p : pieces) {
      const auto size = static_cast<size_t>(p.n * model_->settings().vocabulary);
      out.emplace_back(all.begin() + static_cast<std::ptrdiff_t>(at),
                       all.begin() + static_cast<std::ptrdiff_t>(at + size));
      at += size;
    }
    return out;
  }
  model_v41& of() { return *model_; }

private:
  checkpoint files_;
  engram_tables tables_;
  std::unique_ptr<model_v41> model_;
};

} // namespace

TEST_CASE("batch: a sequence has the same bits alone and among others, in any slot and blocks") {
  const std::vector<int32_t> a = random_ids(70, 1), b = random_ids(40, 2), c = random_ids(9, 3);
  on_ranks(1, [&](backend& be, int) {
    batch alone(be);
    const auto run = [&](const std::vector<int32_t>& ids) {
      const piece p{0, {0, 1}, ids, 0, static_cast<int64_t>(ids.size())};
      return alone.step({&p, 1})[0];
    };
    const std::vector<float> want_a = run(a), want_b = run(b), want_c = run(c);
    batch together(be);
    const auto part_a = [&](int64_t from, int64_t n) { return piece{3, {7, 2}, a, from, n}; };
    const auto part_b = [&](int64_t from, int64_t n) { return piece{1, {4}, b, from, n}; };
    const auto part_c = [&](int64_t from, int64_t n) { return piece{0, {5}, c, from, n}; };
    std::vector<float> got_a, got_b, got_c;
    const auto add = [](std::vector<float>& to, const std::vector<float>& v) {
      to.insert(to.end(), v.begin(), v.end());
    };
    // Prompts in pieces beside single tokens of the others, in changing order.
    auto r = together.step(std::vector{part_a(0, 33), part_b(0, 3)});
    add(got_a, r[0]), add(got_b, r[1]);
    r = together.step(std::vector{part_b(3, 1), part_a(33, 1), part_c(0, 8)});
    add(got_b, r[0]), add(got_a, r[1]), add(got_c, r[2]);
    r = together.step(std::vector{part_c(8, 1), part_a(34, 36), part_b(4, 36)});
    add(got_c, r[0]), add(got_a, r[1]), add(got_b, r[2]);
    CHECK(got_a == want_a);
    CHECK(got_b == want_b);
    CHECK(got_c == want_c);
  });
}

TEST_CASE("batch: a slot and blocks that another sequence used leave no trace") {
  const std::vector<int32_t> a = random_ids(60, 4), b = random_ids(51, 5);
  on_ranks(1, [&](backend& be, int) {
    batch fresh(be), used(be);
    const piece first{2, {6}, a, 0, 60}, second{2, {6}, b, 0, 51};
    const auto want = fresh.step({&second, 1});
    used.step({&first, 1});
    CHECK(used.step({&second, 1}) == want);
  });
}

TEST_CASE("batch: drafts of several sequences in one call are those of each alone") {
  const std::vector<int32_t> a = random_ids(30, 6), b = random_ids(21, 7);
  on_ranks(1, [&](backend& be, int) {
    batch m(be);
    m.step(std::vector{piece{0, {0}, a, 0, 30}, piece{1, {1}, b, 0, 21}});
    const draft_anchor anchors[] = {{.slot = 0, .position = 30, .token = 11}, {.slot = 1, .position = 21, .token = 12}};
    const draft_result both = m.of().draft(anchors);
    const size_t block = both.tokens.size() / 2;
    for (size_t i = 0; i < 2; ++i) {
      const draft_result one = m.of().draft({&anchors[i], 1});
      CHECK(std::equal(one.tokens.begin(), one.tokens.end(),
                       both.tokens.begin() + static_cast<std::ptrdiff_t>(i * block)));
      CHECK(std::equal(one.logits.begin(), one.logits.end(),
                       both.logits.begin() + static_cast<std::ptrdiff_t>(i * one.logits.size())));
      CHECK(one.confidence[0] == both.confidence[i * block]);
    }
  });
}

TEST_CASE("batch: rows without wanted logits give none, a step without rows is a no-op") {
  const std::vector<int32_t> a = random_ids(5, 8);
  on_ranks(1, [&](backend& be, int) {
    batch m(be);
    CHECK(m.of().forward({}, {}).empty());
    CHECK(m.step(std::vector{piece{0, {0}, a, 0, 5}})[0].size() == 5 * 384);
  });
}

// Tests put the streams of another run in the place of ours, and what comes next begins from those.
TEST_CASE("batch: what an observer writes is what the next half reads") {
  const auto be = make_host_backend({.n_threads = 1});
  for (const std::string_view zeroed : {"stream", "stream_mid"}) {
    batch b(*be, false); // a drafter would tap the streams between layers
    const std::string_view read_by = zeroed == "stream" ? "attn_in" : "ffn_in";
    int32_t n_read = 0, with_engram = -1; // the last layer that added to the streams before it read them
    b.of().observe(
        [&](std::string_view name, int32_t layer, tensor t) {
          if (name == "engram_out") with_engram = layer;
          if (name == zeroed) {
            const std::vector<float> zeros(static_cast<size_t>(t.n_elements()));
            be->upload(t, zeros.data(), t.size_bytes());
          }
          if (name != read_by || (zeroed == "stream" && (layer < 1 || with_engram == layer))) return;
          ++n_read;
          const std::span<const float> x(t.f32(), static_cast<size_t>(t.n_elements()));
          INFO(name << " of layer " << layer);
          CHECK(std::ranges::all_of(x, [](float v) { return v == 0; }));
        },
        20);
    const std::vector<int32_t> ids(20, 3);
    b.step(std::array{piece{0, {0, 1, 2, 3, 4, 5, 6, 7}, ids, 0, 20}});
    CHECK(n_read > 2);
  }
}

TEST_CASE("ranks: the shipped pack on two ranks, whole experts to each, decodes as on one") {
  const std::string folder = TROUPE_SOURCE_DIR "/etc/models/tiny";
  const std::vector<int32_t> ids{0, 5, 300, 700, 17, 900, 1200, 83, 41, 5, 300, 17, 2};
  std::vector<float> logits[3];
  const auto run = [&](backend& be, std::vector<float>& out) {
    model_options o;
    o.folder = folder;
    o.max_sequences = 1;
    o.n_blocks = 1;
    o.max_rows = 16;
    o.load_vision = false;
    const auto m = load_model(be, o, nullptr);
    const auto tables = open_tables(folder, be.rank(), be.n_ranks(), 1);
    const std::vector<int32_t> blocks{0};
    sequence_rows s;
    s.tokens = ids;
    s.blocks = blocks;
    s.n_logits = static_cast<int32_t>(ids.size());
    std::vector<std::byte> records(ids.size() * static_cast<size_t>(tables->record_bytes_per_token()));
    tables->read({&s, 1}, records);
    const auto l = m->forward({&s, 1}, records);
    out.assign(l.begin(), l.end());
  };
  on_ranks(1, [&](backend& be, int) { run(be, logits[2]); });
  on_ranks(2, [&](backend& be, int rank) { run(be, logits[rank]); });
  CHECK(logits[0] == logits[1]);
  CHECK(test::rms_error(logits[0], logits[2]) < 5e-3); // another order of sums, and roundings that fall the other way
}
