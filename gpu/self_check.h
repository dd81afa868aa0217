// The check of every start: known tensors through the kernels that the loaded weights need, against the scalar twins at
// the bounds of tests/cuda. Small shapes, well under a second on an H200.
#pragma once

#include "gpu/backend.h"

#include <compare>
#include <functional>
#include <span>
#include <string>
#include <variant>
#include <vector>

namespace troupe {

// What the kernel of a loaded linear or expert set is chosen by.
struct weight_variant {
  bool is_experts = false;
  stored_matrix::format how = stored_matrix::format::dense;
  stored_matrix::codebook book = stored_matrix::codebook::mul1; // exl3
  int32_t rate = 0, down_rate = 0;                              // exl3: 2 K; down_rate of experts
  dtype type = dtype::f32;                                      // dense
  row_class rows = row_class::decode;                           // prefill where prompts have kernels of their own
  auto operator<=>(const weight_variant&) const = default;
};
std::string name(const weight_variant&); // "linear EXL3 mul1 K=3"
weight_variant variant_of(const stored_matrix&);
weight_variant variant_of(const stored_expert&);

// Attention of rows 512 wide, for which some devices have kernels of their own.
struct wide_attention {
  row_class rows = row_class::decode;
};
std::string name(const wide_attention&); // "attention of 512 dims, prompts"

// What may have a second form.
using parkable = std::variant<weight_variant, wide_attention>;

struct kernel_finding {
  std::string kernel;
  double error = 0, bound = 0; // relative; bound 0: bit for bit
  bool is_right = true;
  bool is_parked = false; // wrong, but another form took its place; its finding comes next
};

// Takes the form that now serves it out of use; false: there is no other one.
using park_form = std::function<bool(const parkable&)>;

// Every operation of the backend, and every variant of `used`, in order. Fault point "self_check NAME": that kernel's
// next result counts as wrong. The device memory it takes stays with `device`, so that is best one made for the check.
std::vector<kernel_finding> self_check(backend& device, std::span<const weight_variant> used, const park_form&);

} // namespace troupe
