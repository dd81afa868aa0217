// Engram records on their way to the device: uploaded in front of a step, or received in the middle of a replayed one.
#include "model/deepseek_v41/model_v41.h"

#include <cstring>

namespace troupe::deepseek_v41 {

bool model_v41::runs_ahead(int64_t n_rows) const {
  return records_mail_ && be_.runs_ahead() && !ctx_.seen && n_rows > 0 &&
         n_rows < static_cast<int64_t>(step_graphs_.size());
}

// Of one Engram slot: (row, slot, column) -> (row, column), rows in the step's order.
void model_v41::copy_records(const found_records& records, int64_t n_rows, size_t slot, std::byte* to) const {
  int64_t per_row = 0, offset = 0;
  for (size_t s = 0; s < buffers_.records.size(); ++s) {
    if (s == slot) offset = per_row;
    per_row += buffers_.records[s].row_elements();
  }
  const int64_t bytes = buffers_.records[slot].row_elements();
  if (!records) {
    std::memset(to, 0, static_cast<size_t>(n_rows * bytes));
    return;
  }
  TROUPE_CHECK(static_cast<int64_t>(records->size()) == n_rows * per_row, "a record for every row of the step");
  for (int64_t r = 0; r < n_rows; ++r)
    std::memcpy(to + r * bytes, records->data() + record_rows_[static_cast<size_t>(r)] * per_row + offset,
                static_cast<size_t>(bytes));
}

void model_v41::upload_records(const found_records& records, int64_t n_rows) {
  for (size_t slot = 0; slot < buffers_.records.size(); ++slot) {
    const tensor to = buffers_.records[slot].slice(0, n_rows);
    record_staging_.resize(static_cast<size_t>(to.size_bytes()));
    copy_records(records, n_rows, slot, record_staging_.data());
    be_.upload(to, record_staging_.data(), to.size_bytes());
  }
}

std::vector<tensor> model_v41::record_tensors(int64_t n_rows) const {
  std::vector<tensor> all;
  for (const tensor& t : buffers_.records) all.push_back(t.slice(0, n_rows));
  return all;
}

int64_t model_v41::mailbox_bytes(int64_t n_rows) const {
  int64_t at = 0;
  for (const tensor& t : record_tensors(n_rows)) at = mailbox::behind(at, t.size_bytes());
  return at;
}

void model_v41::post_records(const found_records& records, int64_t n_rows) {
  int64_t at = 0;
  for (size_t slot = 0; slot < buffers_.records.size(); ++slot) {
    copy_records(records, n_rows, slot, records_mail_->bytes().data() + at);
    at = mailbox::behind(at, n_rows * buffers_.records[slot].row_elements());
  }
  records_mail_->post();
}

// The rows are waited for right behind the launch: what comes after the graph (sampling, guesses) is called while all
// of its layers but the first still run, and a call that waits for the device, as a kernel's first launch may, would
// wait for a post that comes after it.
void model_v41::replay_step(int64_t n, record_source& records) {
  graph& step = *step_graphs_[static_cast<size_t>(n)];
  // The step before has received: it was replayed to its end, where its logits or tokens were fetched. Guesses that it
  // began early may still run; they receive nothing.
  if (records_mail_) records_mail_->clear();
  if (!runs_ahead(n)) {
    const auto found = records.take();
    if (records_mail_) post_records(found, n);
    return be_.replay(step);
  }
  try {
    be_.replay(step);
    post_records(records.take(), n);
  } catch (...) {
    records_mail_->post();                 // nothing may wait on the device for ever
    be_.download(nullptr, head_index_, 0); // nor receive what belongs to a later step
    throw;
  }
}

} // namespace troupe::deepseek_v41
