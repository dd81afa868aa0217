// Both ends of the model that are split by vocabulary rows: token embedding and output matrices. Spec: model.md 2
// and 6.
#pragma once

#include "gpu/backend.h"
#include "model/deepseek_v41/weights.h"

#include <span>
#include <vector>

namespace troupe::deepseek_v41 {

class vocabulary_ends {
public:
  // Logits are computed in pieces of `piece` rows.
  vocabulary_ends(backend&, weight_loader&, int64_t piece);

  // y (n, D) = embedding of ids (n) i32, the same on every rank.
  void embed(tensor y, tensor ids) const;
  // out[r * vocabulary + v] = (x W^T)[r][v], x (n, in) of any n, W the head or another matrix cut like it.
  void logits(const matrix& w, tensor x, std::span<float> out);
  const matrix& head() const { return *head_; }

private:
  backend& be_;
  rank_share share_;
  int64_t vocabulary_, piece_, first_id_;
  tensor embedding_;
  matrix_ptr head_;
  tensor local_, all_; // (piece * stride), (ranks, piece * stride) f32
  std::vector<float> gathered_;
};

} // namespace troupe::deepseek_v41
