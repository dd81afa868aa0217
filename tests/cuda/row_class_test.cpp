// Calls whose rows are of both classes: each row has the bits that it has in a call of its own class.
#include "tests/cuda/stored_samples.h"
#include "tests/cuda/twins.h"

using namespace troupe;
using namespace troupe::test;

namespace {

constexpr int64_t n_rows = 83;
// Rows behind the last run are decode.
constexpr row_run mixed[] = {{row_class::prefill, 41}, {row_class::decode, 3}, {row_class::prefill, 37}};

row_class class_of(int64_t row) { return row < 41 || (row >= 44 && row < 81) ? row_class::prefill : row_class::decode; }

// `op` writes n_rows rows of `y`, however it likes.
void compare(twins& t, const char* what, const twin_tensor& y, const std::function<void()>& op) {
  const auto with = [&](std::span<const row_run> runs) {
    t.device->set_row_classes(runs);
    op();
    return t.read_device(y);
  };
  const std::vector<float> decode = with({}), prefill = with(all_prefill), both = with(mixed);
  t.device->set_row_classes({});
  const auto width = static_cast<size_t>(y.device.row_elements());
  for (size_t r = 0; r < static_cast<size_t>(n_rows); ++r) {
    const auto& want = class_of(static_cast<int64_t>(r)) == row_class::prefill ? prefill : decode;
    CHECK_MESSAGE(std::memcmp(both.data() + r * width, want.data() + r * width, width * sizeof(float)) == 0,
                  what << " row " << r);
  }
}

} // namespace

TEST_CASE("cuda row classes: linears of one and of several matrices") {
  twins t;
  std::vector<stored_sample> samples;
  samples.reserve(3);
  samples.push_back(trellis_sample(stored_matrix::codebook::mul1, 6, 512, 384, 1));
  samples.push_back(trellis_sample(stored_matrix::codebook::mcg, 8, 512, 384, 2));
  samples.push_back(std::move(plain_samples(384, 512)[1]));
  std::vector<std::unique_ptr<matrix>> made;
  std::vector<const matrix*> groups;
  for (const stored_sample& s : samples) {
    made.push_back(t.device->load(s.m));
    groups.push_back(made.back().get());
  }
  const twin_tensor x = t.floats({n_rows, 3, 512}, 3), y = t.output({n_rows, 3, 384}), one = t.output({n_rows, 384});
  compare(t, "linear_grouped", y, [&] { t.device->linear_grouped(y.device, x.device, groups); });
  const tensor in = x.device.reshape({n_rows * 3, 512}).slice(0, n_rows);
  for (size_t i = 0; i < made.size(); ++i)
    compare(t, samples[i].m.name.c_str(), one, [&] { t.device->linear(one.device, in, *made[i]); });
}

TEST_CASE("cuda row classes: experts, a gated product, a packed gate and mixing coefficients") {
  twins t;
  std::vector<stored_sample> parts;
  parts.reserve(12);
  std::vector<stored_expert> experts;
  for (unsigned e = 0; e < 4; ++e) {
    parts.push_back(trellis_sample(stored_matrix::codebook::mul1, 6, 256, 128, 3 * e));
    parts.push_back(trellis_sample(stored_matrix::codebook::mul1, 6, 256, 128, 3 * e + 1));
    parts.push_back(trellis_sample(stored_matrix::codebook::mul1, 6, 128, 256, 3 * e + 2));
  }
  for (size_t e = 0; e < 4; ++e) experts.push_back({parts[3 * e].m, parts[3 * e + 1].m, parts[3 * e + 2].m});
  const auto set = t.device->load_experts(experts, 0);
  std::vector<int32_t> chosen;
  for (int32_t r = 0; r < n_rows; ++r)
    for (int32_t k = 0; k < 2; ++k) chosen.push_back((r + k) % 4);
  const twin_tensor x = t.floats({n_rows, 256}, 1), y = t.output({n_rows, 256}), ids = t.ints({n_rows, 2}, chosen),
                    weights = t.floats({n_rows, 2}, 2);
  compare(t, "experts", y, [&] { t.device->experts(y.device, x.device, *set, ids.device, weights.device, 3.0F); });

  const auto gate = t.device->load(parts[0].m), up = t.device->load(parts[1].m), down = t.device->load(parts[2].m);
  compare(t, "gated_mlp", y, [&] { t.device->gated_mlp(y.device, x.device, *gate, *up, *down, 3.0F); });

  const twin_tensor scores = t.output({n_rows, 6}), best = t.output({n_rows, 6}, dtype::i32), bias = t.floats({128}, 3);
  compare(t, "route", scores,
          [&] { t.device->route(best.device, scores.device, x.device, *gate, bias.device, {}, {}, 1.5F); });

  stored_sample fn = trellis_sample(stored_matrix::codebook::mul1, 6, 256, 128, 77);
  fn.m.out = 24;
  stored_sample floats = std::move(plain_samples(24, 256)[0]);
  REQUIRE(floats.m.weight.type == dtype::f32);
  const twin_tensor h = t.floats({n_rows, 4, 64}, 4), scale = t.floats({3}, 5), base = t.floats({24}, 6),
                    pre = t.output({n_rows, 4}), post = t.output({n_rows, 4}), comb = t.output({n_rows, 16});
  for (const stored_sample* s : {&fn, &floats}) {
    const auto coefficients = t.device->load(s->m);
    compare(t, "mix", pre, [&] {
      mix_args a;
      a.pre = pre.device, a.post = post.device, a.comb = comb.device.reshape({n_rows, 4, 4}), a.h = h.device;
      a.fn = coefficients.get(), a.scale = scale.device, a.base = base.device;
      t.device->mix(a);
    });
  }
}
