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
  // The same in two steps for n <= piece(): on the device, this rank's share (n, rows of this rank) f32, valid until
  // the next call; and the first `n` rows of it, of all ranks, to the host.
  tensor project(const matrix& w, tensor x);
  void fetch(const matrix& w, int64_t n, std::span<float> out);
  tensor projected(const matrix& w, int64_t n) const { return tensor(local_.data, dtype::f32, {n, w.out}); }
  int64_t piece() const { return piece_; }
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
