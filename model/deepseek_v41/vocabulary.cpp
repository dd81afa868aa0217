// Embedding and logits over the rank group.
#include "model/deepseek_v41/vocabulary.h"

#include <algorithm>

namespace troupe::deepseek_v41 {

vocabulary_ends::vocabulary_ends(backend& be, weight_loader& load, int64_t piece)
    : be_(be), share_(load.share()), piece_(piece), embedding_(load.embedding()), head_(load.head()) {
  vocabulary_ = load.vocabulary();
  const int64_t each = (vocabulary_ + share_.n_ranks - 1) / share_.n_ranks;
  first_id_ = each * share_.rank;
  local_ = be.allocate(dtype::f32, {piece * share_.vocabulary_stride}, "logits");
  if (share_.n_ranks == 1) return;
  all_ = be.allocate(dtype::f32, {share_.n_ranks, piece * share_.vocabulary_stride}, "logits of all ranks");
  gathered_.resize(static_cast<size_t>(all_.n_elements()));
}

void vocabulary_ends::embed(tensor y, tensor ids) const {
  be_.embed(y, embedding_, first_id_, ids);
  be_.all_reduce_sum(y);
}

void vocabulary_ends::logits(const matrix& w, tensor x, std::span<float> out) {
  for (int64_t first = 0; first < x.rows(); first += piece_) {
    const int64_t n = std::min(piece_, x.rows() - first);
    project(w, x.slice(first, n));
    fetch(w, n, out.subspan(static_cast<size_t>(first * vocabulary_), static_cast<size_t>(n * vocabulary_)));
  }
}

tensor vocabulary_ends::project(const matrix& w, tensor x) {
  TROUPE_CHECK(x.rows() <= piece_, "a piece of logits has room for its rows");
  const tensor local = projected(w, x.rows());
  be_.linear(local, x, w);
  return local;
}

void vocabulary_ends::fetch(const matrix& w, int64_t n, std::span<float> out) {
  const tensor local = projected(w, n);
  if (share_.n_ranks == 1) return be_.download(out.data(), local, local.size_bytes());
  const int64_t stride = share_.vocabulary_stride;
  const tensor all(all_.data, dtype::f32, {share_.n_ranks, n * stride});
  be_.all_gather(all, tensor(local_.data, dtype::f32, {n * stride}));
  be_.download(gathered_.data(), all, all.size_bytes());
  for (int64_t rank = 0; rank < share_.n_ranks; ++rank) {
    const int64_t begin = std::min(rank * stride, vocabulary_), rows = std::min(stride, vocabulary_ - begin);
    const float* part = gathered_.data() + rank * n * stride; // (n, rows): what that rank's linear wrote
    for (int64_t r = 0; r < n; ++r) std::copy_n(part + r * rows, rows, out.data() + r * vocabulary_ + begin);
  }
}

} // namespace troupe::deepseek_v41
