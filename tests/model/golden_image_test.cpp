// The image case: tower, aligner, insertion, routing inside the span, dead tokens of the hash.
#include "tests/model/golden_compare.h"

using namespace golden;

namespace {

// `seen` covers the prompt and the decode steps, in that order.
void compare_image(expected_file& want, const capture& seen, const config& c, std::span<const int32_t> rows,
                   size_t n_prompt, std::span<const float> logits, std::span<const float> decode) {
  comparison with(want, seen, c, rounded_bounds);
  with.near("vit_out", with.seen("vit_out", -1).values);
  with.near("aligner_out", with.seen("aligner_out", -1).values);
  const captured_tensor& embed = with.seen("embed", -1);
  with.near("embed", std::span(embed.values).first(n_prompt * static_cast<size_t>(embed.width)));
  for (int32_t l = 0; l < c.layers; ++l) with.layer(l, rows, rows);
  std::vector<float> picked;
  const auto v = static_cast<size_t>(c.vocabulary);
  for (const int32_t p : rows) {
    const auto row = logits.subspan(static_cast<size_t>(p) * v, v);
    picked.insert(picked.end(), row.begin(), row.end());
  }
  with.near("logits", picked);
  std::vector<int32_t> argmax;
  for (size_t p = 0; p < n_prompt; ++p) argmax.push_back(best(logits.subspan(p * v, v)));
  CHECK(argmax == want.ints("argmax"));
  with.near("decode.logits", decode);
}

} // namespace

TEST_CASE("golden model: an image in the prompt agrees at every chunk size, on one rank and on two" *
          doctest::test_suite("slow")) {
  const fs::path path = find_case("tiny-a");
  if (path.empty()) {
    MESSAGE("golden case tiny-a image: absent");
    return;
  }
  MESSAGE("golden case tiny-a image: ran");
  const case_folder from(path, "native");
  expected_file want(path / "expected_image.safetensors");
  const std::vector<int32_t> ids = want.ints("ids"), grid = want.ints("grid"), rows = want.ints("rows");
  const std::vector<float> patches = want.floats("patches");
  const auto n_prompt = static_cast<size_t>(want.shape("token_types")[0]);
  const config c = read_config(from.folder);

  // The span that the token types show is the one the grid describes.
  const image_span span{.start = grid[4], .grid_h = grid[2], .grid_w = grid[3], .image = 0};
  const std::vector<int32_t> types = want.ints("token_types");
  const int64_t length = int64_t{span.grid_h} * (span.grid_w + 1) + 2;
  for (int64_t i = 0; i < static_cast<int64_t>(n_prompt); ++i)
    CHECK((types[static_cast<size_t>(i)] >= 0) == (i >= span.start && i < span.start + length));

  for (const int n_ranks : {1, 2}) {
    std::vector<float> first_logits;
    for (const size_t chunk : {n_prompt, size_t{1}, size_t{7}, size_t{64}, size_t{100}}) {
      INFO("ranks " << n_ranks << ", chunk " << chunk);
      on_ranks(n_ranks, [&](backend& be, int rank) {
        capture seen;
        runner r(be, from, static_cast<int64_t>(ids.size()), prefill_mode::exact, 0, true);
        r.of().observe(capture_into(be, seen), static_cast<int64_t>(ids.size()));
        r.images = {span};
        r.handles = {r.of().take_patches(patches, grid[0], grid[1])};
        const std::vector<float> logits = r.prefill(std::span(ids).first(n_prompt), chunk);
        std::vector<float> decode;
        for (size_t at = n_prompt; at < ids.size(); ++at) {
          const std::vector<float> row = r.step(std::span(ids).subspan(at, 1), static_cast<int64_t>(at), 1);
          decode.insert(decode.end(), row.begin(), row.end());
        }
        if (rank != 0) return; // it saw the same
        compare_image(want, seen, c, rows, n_prompt, logits, decode);
        if (first_logits.empty()) first_logits = logits;
        CHECK(logits == first_logits); // one numeric class
      });
    }
  }

  const checkpoint files(from.folder);
  engram_tables tables(files, from.token_map, 0, 1, 1);
  sequence_rows s;
  s.tokens = std::span(ids).first(n_prompt);
  s.images = {&span, 1};
  const std::vector<int64_t> got = tables.row_ids({&s, 1});
  const std::vector<int32_t> row_ids = want.ints("engram_row_ids");
  CHECK(std::equal(got.begin(), got.end(), row_ids.begin(), row_ids.end()));
  CHECK(want.unused() == std::vector<std::string>{});
}
