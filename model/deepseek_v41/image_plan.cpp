// Image planning and patching.
#include "model/deepseek_v41/image_plan.h"

#include "model/resample.h"
#include "storage/check.h"

#include <fmt/format.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <stdexcept>

namespace troupe::deepseek_v41 {
namespace {

void check_config(const vision_plan_config& c) {
  const auto refuse = [](const char* key, auto found, const char* expected) {
    throw std::runtime_error(fmt::format("config.json, vision_config.{}: expected {}, found {}", key, expected, found));
  };
  if (c.patch < 1 || c.patch > 1024) refuse("patch_size", c.patch, "1..1024");
  if (c.downsample < 1 || c.downsample > 1024) refuse("downsample_ratio", c.downsample, "1..1024");
  if (c.max_tokens < 4 || c.max_tokens > 1 << 20) refuse("max_image_tokens", c.max_tokens, "4..1048576");
  if (c.min_pixels < 0 || c.min_pixels > int64_t{1} << 40) refuse("min_pixels", c.min_pixels, "0..2^40");
  const int64_t cell = int64_t{c.patch} * c.downsample;
  if (cell * cell > (int64_t{1} << 30) / c.max_tokens) // also keeps every size below within 32 bits
    refuse("max_image_tokens", c.max_tokens, "an image of 2^30 pixels at most");
  if (c.max_wh_ratio && !(*c.max_wh_ratio > 0)) refuse("max_wh_ratio", *c.max_wh_ratio, "null or a positive number");
}

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Double precision in the order of vision.md: a last bit decides a row of patches.
struct planner {
  const vision_plan_config& c;
  double width, height;                // after the ratio limit and the enlargement
  int64_t width_px = 0, height_px = 0; // bw, bh
  int64_t grid_h = 0, grid_w = 0;

  int64_t count_tokens() {
    grid_h = ceil_div(height_px / c.patch, c.downsample);
    grid_w = ceil_div(width_px / c.patch, c.downsample);
    return grid_h * (grid_w + 1) + 2;
  }

  // The largest size of the image's shape that fits max_tokens.
  void shrink() {
    const int64_t n = c.max_tokens, patch = c.patch, cell = patch * c.downsample;
    const double ratio = height / width;
    const double most_w = std::sqrt(static_cast<double>(n - 2) / ratio + 0.25) - 0.5, most_h = most_w * ratio; // cells
    if (most_w < 1) {
      height_px = (n - 2) / 2 * cell;
      width_px = cell;
    } else if (most_h < 1) {
      height_px = cell;
      width_px = (n - 3) * cell;
    } else {
      const auto side = static_cast<double>(cell);
      const double beta = std::min(std::floor(most_w) * side / width, std::floor(most_h) * side / height);
      const auto fit = [&](double x) { // at least one patch: with downsample 1 half a cell is less than a patch
        return std::max<int64_t>(1, static_cast<int64_t>(std::floor(x * beta / static_cast<double>(patch)))) * patch;
      };
      height_px = fit(height);
      width_px = fit(width);
    }
  }
};

} // namespace

image_grid plan_grid(int64_t width, int64_t height, const vision_plan_config& config) {
  check_config(config);
  TROUPE_CHECK(width > 0 && height > 0, "decode_image returns no empty image");
  planner p{.c = config, .width = static_cast<double>(width), .height = static_cast<double>(height)};
  if (config.max_wh_ratio && p.width > p.height * *config.max_wh_ratio) p.width = p.height * *config.max_wh_ratio;
  const double area = p.width * p.height, least = static_cast<double>(config.min_pixels);
  if (area < least) {
    const double scale = std::sqrt(least / area);
    p.width = std::max(1.0, std::trunc(p.width * scale));
    p.height = std::max(1.0, std::trunc(p.height * scale));
  }
  const double patch = config.patch;
  p.width_px = static_cast<int64_t>(std::ceil(p.width / patch)) * config.patch;
  p.height_px = static_cast<int64_t>(std::ceil(p.height / patch)) * config.patch;
  if (p.count_tokens() > config.max_tokens) p.shrink();
  const int64_t n_tokens = p.count_tokens();
  if (n_tokens > config.max_tokens)
    throw std::runtime_error(fmt::format("an image of {} x {} pixels takes {} tokens, max_image_tokens is {}", width,
                                         height, n_tokens, config.max_tokens));
  return {.width_px = static_cast<int32_t>(p.width_px),
          .height_px = static_cast<int32_t>(p.height_px),
          .grid_h = static_cast<int32_t>(p.grid_h),
          .grid_w = static_cast<int32_t>(p.grid_w),
          .n_tokens = n_tokens};
}

planned_image plan_image(const rgb_image& image, const vision_plan_config& config) {
  constexpr std::array<uint8_t, 3> grey = {127, 127, 127};
  const image_grid grid = plan_grid(image.width, image.height, config);
  const bool stretched = config.max_wh_ratio && image.width >= *config.max_wh_ratio * image.height;
  rgb_image fitted = stretched ? resize_bicubic(image, grid.width_px, grid.height_px)
                               : pad_bicubic(image, grid.width_px, grid.height_px, grey);
  const uint64_t size = static_cast<uint64_t>(grid.width_px) << 32 | static_cast<uint32_t>(grid.height_px);
  planned_image out;
  out.width = grid.width_px;
  out.height = grid.height_px;
  out.grid_h = grid.grid_h;
  out.grid_w = grid.grid_w;
  out.hash = XXH64(fitted.rgb.data(), fitted.rgb.size(), size);
  out.rgb = std::move(fitted.rgb);
  return out;
}

void image_patches(const planned_image& image, int patch, std::vector<float>& out) {
  TROUPE_CHECK(patch > 0 && image.width % patch == 0 && image.height % patch == 0, "plan_grid rounds to whole patches");
  TROUPE_CHECK(image.rgb.size() == static_cast<size_t>(image.width) * static_cast<size_t>(image.height) * 3,
               "an image holds three bytes for each pixel");
  std::array<float, 256> value{};
  for (size_t i = 0; i < value.size(); ++i) {
    const float x = (static_cast<float>(i) / 255.0f - 0.5f) / 0.5f;
    const auto bits = std::bit_cast<uint32_t>(x);
    value[i] = std::bit_cast<float>((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000u); // to bf16, half to even
  }
  const auto side = static_cast<size_t>(patch), row_bytes = static_cast<size_t>(image.width) * 3;
  const size_t n_down = static_cast<size_t>(image.height) / side, n_across = static_cast<size_t>(image.width) / side;
  out.resize(n_down * n_across * 3 * side * side);
  float* to = out.data();
  for (size_t row = 0; row < n_down; ++row)
    for (size_t column = 0; column < n_across; ++column)
      for (size_t channel = 0; channel < 3; ++channel)
        for (size_t y = 0; y < side; ++y) {
          const uint8_t* from = image.rgb.data() + (row * side + y) * row_bytes + column * side * 3 + channel;
          for (size_t x = 0; x < side; ++x, from += 3) *to++ = value[*from];
        }
}

} // namespace troupe::deepseek_v41
