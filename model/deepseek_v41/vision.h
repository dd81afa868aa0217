// The vision tower and the aligner: patches of one image -> embedding rows of its span.                 Spec: vision.md
#pragma once

#include "gpu/backend.h"
#include "model/deepseek_v41/weights.h"

#include <cstdint>
#include <functional>
#include <span>
#include <string_view>
#include <vector>

namespace troupe::deepseek_v41 {

class vision_tower {
public:
  vision_tower(backend&, const config&, vision_weights);

  // patches (grid_h * grid_w, 3 * patch * patch), patches row by row, a patch as channel, y, x | out (n_tokens, D):
  // START, then per row of cells the cells and NEWLINE, then END.
  // Throws std::runtime_error when the grid is larger than the config allows.
  void encode(tensor out, std::span<const float> patches, int64_t patch_rows, int64_t patch_columns);
  int64_t span_tokens(int64_t patch_rows, int64_t patch_columns) const;

  std::function<void(std::string_view, tensor)> seen; // tests; may be empty

private:
  void run_block(const vision_block_weights&, int64_t n);
  void align(tensor out, int64_t patch_rows, int64_t patch_columns);

  backend& be_;
  const config& c_;
  const vision_config& v_;
  vision_weights w_;
  int64_t max_patches_, max_cells_;
  tensor patches_, x_, normed_, angles_;    // (P, 3 patch^2), (P, hidden) twice, (P, head / 2)
  tensor qkv_, part_[3], part_rows_[3], o_; // (P, 3 hidden), (P, hidden) each, (P) i32 each
  tensor gate_up_, act_;                    // (P, 2 width), (P, width)
  tensor cells_, aligned_, embedded_;       // (C, hidden * downsample^2), (C, D) twice
};

} // namespace troupe::deepseek_v41
