// Embedding rows of images: pixels stay on the host, rows are made when a step shows them, in a fixed number of
// buffers.
#pragma once

#include "model/deepseek_v41/vision.h"
#include "model/model.h"

#include <cstdint>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace troupe::deepseek_v41 {

// All device memory is taken by the constructor. Making rows again gives the same bits.
class image_rows {
public:
  image_rows(backend&, const config&, vision_weights);

  // An image until drop(). Throws std::runtime_error when it is no whole patches, or larger than the config allows.
  int32_t add(planned_image);
  // The same from patches as vision_tower::encode takes them.
  int32_t add_patches(std::vector<float> patches, int64_t patch_rows, int64_t patch_columns);
  void drop(int32_t handle);
  // (n_tokens, D), valid until the next call. Precondition: the handle was added and not dropped.
  tensor rows(int32_t handle);

  vision_tower& tower() { return tower_; }

private:
  struct image {
    planned_image pixels;       // or
    std::vector<float> patches; // where the image came as patches
    int64_t patch_rows = 0, patch_columns = 0;
  };
  struct buffer {
    tensor rows; // (max tokens of an image, D)
    int32_t handle = -1;
    uint64_t used = 0;
  };
  int32_t add(image);

  const vision_config& v_;
  vision_tower tower_;
  std::vector<buffer> buffers_;
  std::unordered_map<int32_t, image> images_;
  std::vector<float> patches_; // of the image being encoded
  int32_t last_handle_ = -1;
  uint64_t now_ = 0;
};

} // namespace troupe::deepseek_v41
