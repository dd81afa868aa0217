// Which tensors a configuration needs: name, family, place and shape of each. Spec: model-tensors.md section 1.
#pragma once

#include "model/deepseek_v41/config.h"

#include <string>
#include <vector>

namespace troupe::deepseek_v41 {

// Whether `stem`.bias belongs to a linear. `none`: a tensor of that name is something else (the router's).
enum class bias_rule { none, optional, needed };

struct tensor_need {
  enum class kind {
    matrix,  // a linear in any stored format: `stem` + ".weight" (+ ".scale"), or the EXL3 quadruple
    grouped, // a linear of o_groups row blocks, whole or as `stem`.slice.g
    plain,   // one tensor named `stem`, F32, BF16 or F16, of `shape`
    table,   // Engram rows: `stem`.weight and `stem`.scale, rows x width
  };
  kind what = kind::plain;
  bool optional = false;
  bias_rule bias = bias_rule::optional;
  std::string family;                  // "attention"
  std::string owner;                   // "layer 3", "draft stage 0", "vision block 1", "the model"
  std::string stem;                    // full name; of a matrix without ".weight"
  std::string label;                   // the part of the stem that says which one of its family it is: "wq_a"
  int64_t out = 0, in = 0, groups = 1; // matrix and grouped: the whole linear; table: rows, width
  std::vector<int64_t> shape;          // plain
};

// Prefixes of tensor names: "layers.3." and "mtp.0.".
std::string layer_prefix(int32_t layer);
std::string stage_prefix(int32_t stage);

std::vector<tensor_need> backbone_needs(const config&);
std::vector<tensor_need> draft_needs(const config&);  // empty without draft stages
std::vector<tensor_need> vision_needs(const config&); // empty without a tower

} // namespace troupe::deepseek_v41
