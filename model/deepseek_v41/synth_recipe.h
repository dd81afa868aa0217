// What a synthetic checkpoint holds: name, shape, type and law of each tensor, for a config and a few settings.
// Spec: exl3.md section 8.3, model-tensors.md section 2.1.
#pragma once

#include "model/deepseek_v41/config.h"
#include "model/deepseek_v41/synth_numbers.h"
#include "storage/safetensors_header.h"

#include <cstdint>
#include <string>
#include <vector>

namespace troupe::deepseek_v41 {

// Beside config.json, all that the bytes depend on.
struct synth_settings {
  uint64_t seed = 1;
  std::string bits = "2.9";    // name of the recipe: the only one there is
  std::vector<int32_t> layers; // number in the released model of each layer of the config: decides its rates
  double expert_skew = 0;      // 0: routing knows no favourites; 1: expert of rank r about as often as 1 / r
  int64_t outliers = 8;        // channels of the residual stream that are sixteen times as large as the others
};

struct synth_tensor {
  tensor_info info; // file, offset: 0
  synth_law law;
  uint64_t key = 0;
  std::string owner; // "layer 3", as the inventory calls it
};

// All tensors that the config needs, in the order of the inventory. Throws std::runtime_error naming setting or config
// key: an unknown recipe, layers that do not fit the config, widths that EXL3 has no blocks for.
std::vector<synth_tensor> synth_tensors(const config&, const synth_settings&);

} // namespace troupe::deepseek_v41
