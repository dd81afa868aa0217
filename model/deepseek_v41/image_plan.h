// How many tokens an image takes, which pixels the vision tower sees, and its patches. Spec: vision.md section 1.
#pragma once

#include "model/image.h"
#include "model/model.h"

#include <cstdint>
#include <optional>
#include <vector>

namespace troupe::deepseek_v41 {

// From vision_config of config.json.
struct vision_plan_config {
  int32_t patch = 0;      // P: pixels on a side of a patch                                      patch_size
  int32_t downsample = 0; // R: patches on a side of one token                                   downsample_ratio
  int32_t max_tokens = 0; // N: START, END and NEWLINE tokens included                           max_image_tokens
  int64_t min_pixels = 0; // Amin: smaller images are enlarged to this area                      min_pixels
  std::optional<double> max_wh_ratio;
};

struct image_grid {
  int32_t width_px = 0, height_px = 0; // multiples of the patch
  int32_t grid_h = 0, grid_w = 0;      // tokens, without the NEWLINE column
  int64_t n_tokens = 0;                // grid_h * (grid_w + 1) + 2 <= max_tokens
};

// `width`, `height`: of the decoded image, > 0. Throws std::runtime_error when the configuration makes no sense.
image_grid plan_grid(int64_t width, int64_t height, const vision_plan_config&);

// Brings the image to the planned size: shape kept and padded with grey, or, only when max_wh_ratio is set and the
// image is wider than that, stretched. `hash` is the XXH64 of the pixels, seeded with the size.
planned_image plan_image(const rgb_image&, const vision_plan_config&);

// Writes the patches (n_patches, 3 * patch * patch) f32, row-major over the patch grid, each [channel, y, x]: pixels
// scaled to -1..1 and rounded to bf16. Precondition: the image's sides are multiples of `patch`.
void image_patches(const planned_image&, int patch, std::vector<float>& out);

} // namespace troupe::deepseek_v41
