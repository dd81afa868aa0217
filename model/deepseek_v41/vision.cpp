// A plain ViT with two-dimensional rotation, then cells of downsample x downsample patches through a small MLP.
#include "model/deepseek_v41/vision.h"

#include <cmath>
#include <stdexcept>
#include <string>

namespace troupe::deepseek_v41 {
namespace {

constexpr float vision_eps = 1e-6F; // vision.md: not the text model's

int64_t cells_along(int64_t patches, int64_t downsample) { return (patches + downsample - 1) / downsample; }

} // namespace

vision_tower::vision_tower(backend& be, const config& c, vision_weights w)
    : be_(be), c_(c), v_(c.vision), w_(std::move(w)), max_patches_((v_.max_tokens - 3) * v_.downsample * v_.downsample),
      max_cells_(v_.max_tokens - 3) {
  const dtype type = be.activation_type();
  const auto make = [&](int64_t rows, int64_t width, dtype t) {
    return be.allocate(t, {rows, width}, "vision buffers");
  };
  patches_ = make(max_patches_, 3 * v_.patch * v_.patch, type);
  for (tensor* t : {&x_, &normed_, &o_, &part_[0], &part_[1], &part_[2]}) *t = make(max_patches_, v_.hidden, type);
  angles_ = make(max_patches_, v_.hidden / v_.heads / 2, dtype::f32);
  qkv_ = make(max_patches_, 3 * v_.hidden, type);
  gate_up_ = make(max_patches_, 2 * v_.width, type);
  act_ = make(max_patches_, v_.width, type);
  cells_ = make(max_cells_, v_.hidden * v_.downsample * v_.downsample, type);
  aligned_ = make(max_cells_, c.dim, type);
  embedded_ = make(max_cells_, c.dim, type);
  std::vector<int32_t> order(static_cast<size_t>(max_patches_));
  for (int32_t i = 0; i < 3; ++i) {
    for (size_t r = 0; r < order.size(); ++r) order[r] = static_cast<int32_t>(3 * r) + i;
    part_rows_[i] = be.allocate(dtype::i32, {max_patches_}, "vision buffers");
    be.upload(part_rows_[i], order.data(), part_rows_[i].size_bytes());
  }
}

int64_t vision_tower::span_tokens(int64_t patch_rows, int64_t patch_columns) const {
  return cells_along(patch_rows, v_.downsample) * (cells_along(patch_columns, v_.downsample) + 1) + 2;
}

void vision_tower::encode(tensor out, std::span<const float> patches, int64_t patch_rows, int64_t patch_columns) {
  const int64_t n = patch_rows * patch_columns, width = 3 * v_.patch * v_.patch;
  if (n <= 0 || span_tokens(patch_rows, patch_columns) > v_.max_tokens ||
      static_cast<int64_t>(patches.size()) != n * width)
    throw std::runtime_error("image of " + std::to_string(patch_rows) + " x " + std::to_string(patch_columns) +
                             " patches: expected one of at most " + std::to_string(v_.max_tokens) + " tokens");
  const tensor input = patches_.slice(0, n), x = x_.slice(0, n);
  be_.upload(input, patches.data(), input.size_bytes());
  be_.linear(x, input, *w_.patches);

  const int64_t half = v_.hidden / v_.heads / 2, per_axis = half / 2;
  std::vector<float> angles(static_cast<size_t>(n * half));
  for (int64_t r = 0; r < n; ++r)
    for (int64_t i = 0; i < half; ++i) {
      const float f = 1.0F / std::pow(static_cast<float>(v_.rope_theta),
                                      static_cast<float>(2 * (i % per_axis)) / static_cast<float>(half));
      angles[static_cast<size_t>(r * half + i)] =
          static_cast<float>(i < per_axis ? r / patch_columns : r % patch_columns) * f;
    }
  const tensor table = angles_.slice(0, n);
  be_.upload(table, angles.data(), table.size_bytes());

  for (const vision_block_weights& b : w_.blocks) run_block(b, n);
  be_.rms_norm(x, x, w_.norm, vision_eps);
  if (seen) seen("vit_out", x);
  align(out, patch_rows, patch_columns);
}

void vision_tower::run_block(const vision_block_weights& b, int64_t n) {
  const tensor x = x_.slice(0, n), normed = normed_.slice(0, n), qkv = qkv_.slice(0, n), angles = angles_.slice(0, n);
  const int64_t head = v_.hidden / v_.heads;
  be_.rms_norm(normed, x, b.norm1, vision_eps);
  be_.linear(qkv, normed, *b.wqkv);
  tensor part[3];
  for (int i = 0; i < 3; ++i) {
    be_.copy_rows(part_[i].slice(0, n), {}, qkv.reshape({3 * n, v_.hidden}), part_rows_[i].slice(0, n));
    part[i] = part_[i].slice(0, n).reshape({n, v_.heads, head});
  }
  be_.rope_half(part[0], angles, v_.heads);
  be_.rope_half(part[1], angles, v_.heads);
  const tensor o = o_.slice(0, n);
  be_.attention_full(o.reshape({n, v_.heads, head}), part[0], part[1], part[2],
                     1.0F / std::sqrt(static_cast<float>(head)));
  be_.linear(normed, o, *b.wo);
  be_.add(x, normed);

  be_.rms_norm(normed, x, b.norm2, vision_eps);
  be_.linear(gate_up_.slice(0, n), normed, *b.w1);
  be_.silu_mul(act_.slice(0, n), gate_up_.slice(0, n));
  be_.linear(normed, act_.slice(0, n), *b.w2);
  be_.add(x, normed);
}

void vision_tower::align(tensor out, int64_t patch_rows, int64_t patch_columns) {
  const int64_t d = v_.downsample, hidden = v_.hidden, n = patch_rows * patch_columns;
  const int64_t gh = cells_along(patch_rows, d), gw = cells_along(patch_columns, d), width = hidden * d * d;
  std::vector<float> x(static_cast<size_t>(n * hidden)), cells(static_cast<size_t>(gh * gw * width));
  be_.download(x.data(), x_.slice(0, n), n * hidden * 4);
  for (int64_t row = 0; row < patch_rows; ++row)
    for (int64_t col = 0; col < patch_columns; ++col)
      for (int64_t i = 0; i < hidden; ++i) // channel-major inside a cell; what lies outside the grid stays zero
        cells[static_cast<size_t>((row / d * gw + col / d) * width + i * d * d + row % d * d + col % d)] =
            x[static_cast<size_t>((row * patch_columns + col) * hidden + i)];
  const tensor in = cells_.slice(0, gh * gw), mid = aligned_.slice(0, gh * gw), rows = embedded_.slice(0, gh * gw);
  be_.upload(in, cells.data(), in.size_bytes());
  be_.linear(mid, in, *w_.aligner_in);
  be_.gelu(mid);
  be_.linear(rows, mid, *w_.aligner_out);
  if (seen) seen("aligner_out", rows);

  const auto place = [&](int64_t at, tensor from) { be_.copy_rows(out.slice(at, from.rows()), {}, from, {}); };
  place(0, w_.delimiters.slice(0, 1));
  for (int64_t r = 0; r < gh; ++r) {
    place(1 + r * (gw + 1), rows.slice(r * gw, gw));
    place(1 + r * (gw + 1) + gw, w_.delimiters.slice(1, 1));
  }
  place(1 + gh * (gw + 1), w_.delimiters.slice(2, 1));
}

} // namespace troupe::deepseek_v41
