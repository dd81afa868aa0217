// The claim that a row has the same bits alone and among others, for device operations.
#pragma once

#include "tests/cuda/twins.h"

namespace troupe::test {

// `op(backend, first, n)` runs rows [first, first + n) of prepared inputs into `out`, whose rows they are. `reset` puts
// in-place tensors back before every run.
template <class Op, class Reset>
void alone_equals_together(const char* what, twins& t, const twin_tensor& out, Op op, Reset reset) {
  const int64_t n_rows = out.device.rows();
  const auto row_bytes = static_cast<size_t>(out.device.size_bytes() / n_rows);
  reset();
  op(*t.device, 0, n_rows);
  const auto together = t.read_device<uint8_t>(out);
  bool same = true;
  for (int64_t r = 0; r < n_rows; ++r) {
    reset();
    op(*t.device, r, 1);
    const auto alone = t.read_device<uint8_t>(out);
    const size_t at = static_cast<size_t>(r) * row_bytes;
    same = same && std::memcmp(alone.data() + at, together.data() + at, row_bytes) == 0;
  }
  CHECK_MESSAGE(same, what << ": a row alone has the bits it has among others");
}
template <class Op> void alone_equals_together(const char* what, twins& t, const twin_tensor& out, Op op) {
  alone_equals_together(what, t, out, op, [] {});
}

} // namespace troupe::test
