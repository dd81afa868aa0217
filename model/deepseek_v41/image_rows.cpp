// Keeps the rows of the images that were shown last; the others are encoded again when their turn comes.
#include "model/deepseek_v41/image_rows.h"

#include "model/deepseek_v41/image_plan.h"
#include "storage/check.h"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>

namespace troupe::deepseek_v41 {
namespace {

// An image is encoded again only when a chunk ends inside it and this many others are shown before the next chunk.
constexpr int n_buffers = 4;

} // namespace

image_rows::image_rows(backend& be, const config& c, vision_weights w) : v_(c.vision), tower_(be, c, std::move(w)) {
  for (int i = 0; i < n_buffers; ++i)
    buffers_.push_back({be.allocate(be.activation_type(), {v_.max_tokens, c.dim}, "image embedding")});
}

int32_t image_rows::add(planned_image pixels) {
  if (pixels.width <= 0 || pixels.height <= 0 || pixels.width % v_.patch != 0 || pixels.height % v_.patch != 0 ||
      static_cast<int64_t>(pixels.rgb.size()) != int64_t{pixels.width} * pixels.height * 3)
    throw std::runtime_error("image: expected whole patches of " + std::to_string(v_.patch) + " pixels, found " +
                             std::to_string(pixels.width) + " x " + std::to_string(pixels.height));
  const int64_t rows = pixels.height / v_.patch, columns = pixels.width / v_.patch;
  return add(image{std::move(pixels), {}, rows, columns});
}

int32_t image_rows::add_patches(std::vector<float> patches, int64_t patch_rows, int64_t patch_columns) {
  return add(image{{}, std::move(patches), patch_rows, patch_columns});
}

int32_t image_rows::add(image what) {
  const int64_t n = tower_.span_tokens(what.patch_rows, what.patch_columns);
  if (n > v_.max_tokens)
    throw std::runtime_error("image: expected at most " + std::to_string(v_.max_tokens) + " tokens, found " +
                             std::to_string(n));
  images_.emplace(++last_handle_, std::move(what));
  return last_handle_;
}

void image_rows::drop(int32_t handle) {
  TROUPE_CHECK(images_.erase(handle) == 1, "only an image that was added is dropped");
  for (auto& b : buffers_)
    if (b.handle == handle) b = {b.rows};
}

tensor image_rows::rows(int32_t handle) {
  const auto found = images_.find(handle);
  TROUPE_CHECK(found != images_.end(), "an image is added before its rows run");
  const image& i = found->second;
  auto at = std::find_if(buffers_.begin(), buffers_.end(), [&](const buffer& b) { return b.handle == handle; });
  const bool is_there = at != buffers_.end();
  if (!is_there)
    at = std::min_element(buffers_.begin(), buffers_.end(),
                          [](const auto& a, const auto& b) { return a.used < b.used; });
  at->used = ++now_;
  const tensor out = at->rows.slice(0, tower_.span_tokens(i.patch_rows, i.patch_columns));
  if (is_there) return out;
  at->handle = -1; // until it is whole
  if (i.patches.empty()) image_patches(i.pixels, static_cast<int>(v_.patch), patches_);
  tower_.encode(out, i.patches.empty() ? patches_ : i.patches, i.patch_rows, i.patch_columns);
  at->handle = handle;
  return out;
}

} // namespace troupe::deepseek_v41
