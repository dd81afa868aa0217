// The device as the model sees it: memory, weights, about thirty operations, capture and collectives.
//
// Conventions. R: rows (tokens) of a step, of several sequences one after another. Activations are (rows, ...)
// row-major in activation_type() (f32 on the host backend). Indices are i32, positions i64. rows == 0 is a no-op. An
// operation never allocates device memory, and the bits of a row never depend on what other rows share the call
// (design.md section 6). Sizes come from the arguments. All tensors of a call belong to this backend. Notation and
// formulas: etc/spec/model.md.
#pragma once

#include "gpu/sample.h"
#include "gpu/tensor.h"

#include <atomic>
#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace troupe {

// One linear as its checkpoint stores it, in host memory that is borrowed for the load call only. y = x W^T + bias.
// EXL3 keeps W input-major (exl3.md section 3); `out` and `in` always mean the linear's own output and input width.
struct stored_matrix {
  enum class format : uint8_t {
    dense,     // weight (out, in) f32 | bf16 | f16
    fp8_block, // weight (out, in) f8_e4m3, scale (ceil(out/32), ceil(in/32)) f8_e8m0      model-tensors.md section 1
    fp8_row,   // weight (out, in) f8_e4m3, scale (out, in/32) f8_e8m0                      lm_head of one public pack
    fp4,       // weight (out, in/2) i8, low nibble = even column, scale (out, in/32) f8_e8m0
    exl3,      // trellis (in/16, out/16, 16*K) i16, suh (in) f16, svh (out) f16            exl3.md
  };
  enum class codebook : uint8_t { inst3, mcg, mul1 };
  format how = format::dense;
  codebook book = codebook::mul1;
  std::string name; // stem, for messages
  int64_t out = 0, in = 0;
  tensor weight, scale, trellis, suh, svh, bias; // bias (out) f32 or empty
};

// A linear in the backend's own form; made by load, freed by its owner before the backend.
class matrix {
public:
  virtual ~matrix() = default;
  int64_t out = 0, in = 0;
  int64_t size_bytes = 0; // device memory it holds
};

// Gated experts of one layer: those this rank owns, each whole or a slice of its width. Global ids: first .. first + n
// - 1.
struct stored_expert {
  stored_matrix gate, up, down; // w1 (width, dim), w3 (width, dim), w2 (dim, width)
};
class expert_set {
public:
  virtual ~expert_set() = default;
  int32_t first = 0, n_experts = 0;
  int64_t size_bytes = 0;
};

// Rows of a step: which sequence each row belongs to. All device views.
struct step_rows {
  tensor slot;      // (R) i32 sequence slot: index into rings and pending halves
  tensor position;  // (R) i64 absolute token position
  tensor first_row; // (R) i32 index of the first row of the same sequence in this step
  tensor floor;  // (R) i64 lowest position whose window row exists (0; the tail's first token for layers run on a tail
                 // only)
  tensor table;  // (R) i32 row of `tables` that holds the sequence's blocks
  tensor tables; // (n_sequences of the step, max_blocks) i32 block ids; entry e of a cache of E entries a block is at
                 // (tables[table][e / E], e % E)
};

// model.md 2.3. Rows are summed in ascending order of position, window rows first, then `selected` as listed.
struct attention_args {
  enum class visibility : uint8_t {
    causal,      // row t sees window rows max(floor, t-window+1) .. t: below the step's first position from the ring
    draft_block, // every row of a sequence sees ring rows max(floor, p-window+1) .. p, p = first position - 1, and all
                 // rows of its own block (dspark.md section 4)
  };
  tensor o;          // out (R, heads, dim)
  tensor q;          // (R, heads, dim)
  tensor step_kv;    // (R, dim) window rows of the step itself
  tensor rings;      // (n_slots, ring, dim): position p at [slot][p % ring]; or records of fp8_32
  tensor compressed; // (n_blocks, entries, dim), or records of fp4_e4m3_16; or empty
  tensor selected;   // (R, k) i32 entry numbers, ascending, -1 = none; or empty
  tensor sink;       // (heads) f32
  int64_t window = 0;
  float scale = 1;
  visibility seen = visibility::causal;
};

// The rotations around attention (model.md 2.2), by the positions of the step.
struct head_turns {
  tensor frequencies;
  bool of_queries = false; // q comes as it was before its rotation, and may be left either way
};

// model.md 2.5: scores, candidate blocks and selection of one indexer layer.
struct index_args {
  tensor selected;             // out (R, k) i32, ascending, -1 behind the last
  tensor q;                    // (R, index heads, index dim)
  tensor weight;               // (R, index heads), constant factor included
  tensor keys;                 // (n_blocks, entries, index dim), or records of fp4_e8m0_32
  int64_t ratio = 1;           // visible entries of position t: (t + 1) / ratio
  tensor candidates_in;        // (R, n) i32 candidate blocks, ascending, -1 behind the last; or empty: all entries
  tensor candidates_out;       // (R, n) i32 or empty: this layer is the candidate source, n = candidate_topk_blocks
  int64_t candidate_block = 0; // entries a candidate block
  tensor scores;               // (R, max entries) f32 or empty: raw scores for tests; -inf where not visible
};

// dspark.md section 4: of each sequence whose drafts were verified, the token that ends the run of right ones begins
// the next block of drafts.
struct anchor_args {
  tensor guesses;   // out (n) i32: that token; 0 for one that could not be drawn
  tensor ids;       // out (n * block) i32: the first of each block is that token, the others stay
  tensor positions; // out (n * block) i64: of the blocks, from the token's own on
  tensor drawn;     // i32, a row of logits each
  tensor step_ids;  // i32, a row of the step each
  tensor requests; // (n, 4) i32: the sequence's first row of `drawn`, the step's row of the same, drafts behind it, the
                   // position of the token drawn there
};

// model.md 2.1
struct mix_args {
  tensor pre, post, comb;     // out (R, M), (R, M), (R, M, M) f32
  tensor h;                   // (R, M, D)
  const matrix* fn = nullptr; // ((2 + M) * M, M * D)
  tensor scale, base;         // (3), ((2 + M) * M) f32
  int iterations = 20;
  float eps = 1e-20F, hc_eps = 1e-6F;
};

enum class quantiser : uint8_t {
  fp8_32,
  fp4_e8m0_32,
  fp4_e4m3_16
}; // model.md 2.7: QDQ_fp8, QDQ_fp4_e8m0_32, QDQ_fp4_e4m3_16

// How caches of quantised rows are kept: as f32, or as records of codes and scales (cache_rows.h: u8, the last
// dimension a record). Both hold the same values, so the bits of a result do not depend on it; attention of prompt rows
// on CUDA is the exception, which has a kernel for records alone.
enum class cache_form : uint8_t { floats, records };
inline constexpr cache_form host_caches = cache_form::floats; // records take three to four times as long to read
inline constexpr cache_form cuda_caches = cache_form::records;
enum class engram_format : uint8_t { fp8, mxint4, mxint3, bf16 }; // exl3.md 14.1, 14.3, 14.4; bf16: no scales

// What a row is computed for (design.md section 6). Sums of the two classes may differ in low bits; within a class the
// bits of a row do not depend on how many rows share the call.
enum class row_class : uint8_t { decode, prefill };

// Rows of one class that follow one another.
struct row_run {
  row_class rows = row_class::decode;
  int64_t n = 0;
};
inline constexpr row_run all_prefill[] = {{row_class::prefill, INT64_MAX}}; // every row of any call

// A captured sequence of operations with fixed arguments.
class graph {
public:
  virtual ~graph() = default;
};

// Pinned host memory with a flag: bytes for device work that may be under way before they are there. The host fills and
// posts it, `receive` waits for that on the device. Made by a backend, ends before it; one thread, the backend's.
class mailbox {
public:
  virtual ~mailbox() = default;
  mailbox(const mailbox&) = delete;
  mailbox& operator=(const mailbox&) = delete;
  // Where the next of several parts begins behind bytes [at, at + n_bytes).
  static int64_t behind(int64_t at, int64_t n_bytes) { return (at + n_bytes + 15) / 16 * 16; }

  std::span<std::byte> bytes() const { return bytes_; } // Precondition of writing: not posted
  // Precondition: what received from it has ended.
  void clear() { flag().store(0, std::memory_order_release); }
  // What was written before is what the device reads.
  void post() { flag().store(1, std::memory_order_release); }
  bool is_posted() const { return flag().load(std::memory_order_acquire) != 0; }

protected:
  // Of memory that the derived class owns; `flag` is zero.
  mailbox(uint32_t* flag, std::span<std::byte> bytes) : flag_(flag), bytes_(bytes) {}

private:
  std::atomic_ref<uint32_t> flag() const { return std::atomic_ref(*flag_); }

  uint32_t* flag_;
  std::span<std::byte> bytes_;
};

class backend {
public:
  virtual ~backend() = default;
  virtual std::string name() const = 0; // "host avx512, 2 threads"
  virtual dtype activation_type() const = 0;
  virtual cache_form preferred_caches() const = 0; // every operation takes both

  // Memory. Zero-filled, freed with the backend; throws std::system_error (not_enough_memory) naming `what` and the
  // sizes.
  virtual tensor allocate(dtype, std::initializer_list<int64_t> shape, const std::string& what) = 0;
  virtual int64_t allocated_bytes() const = 0;
  virtual void upload(tensor to, const void* from, int64_t size_bytes) = 0; // bytes as they are
  virtual void download(void* to, tensor from, int64_t size_bytes) = 0;     // waits for all work before it
  virtual std::unique_ptr<matrix> load(const stored_matrix&) = 0; // throws std::runtime_error naming the tensor
  virtual std::unique_ptr<expert_set> load_experts(std::span<const stored_expert>, int32_t first) = 0;

  // The classes of the rows of the calls that follow: runs from row 0 of a call on, in order; rows behind the last run
  // are `decode`, as all are at first. Reaches attention and the operations with a matrix. The host has one class for
  // everything.
  virtual void set_row_classes(std::span<const row_run>) {}
  virtual bool has_row_classes() const { return true; }

  // Rows and tables.
  virtual void embed(tensor y, tensor table, int64_t first_id,
                     tensor ids) = 0; // y (R, D) = table[id - first_id]; 0 if not in table
  virtual void copy_rows(tensor y, tensor y_rows, tensor x,
                         tensor x_rows) = 0; // y[y_rows[i]] = x[x_rows[i]]; empty rows: 0, 1, ..
  virtual void scatter_entries(tensor cache, tensor x, tensor entries, quantiser how,
                               const step_rows&) = 0; // x[i] -> entry entries[i] (i32, -1: none) of row i's sequence;
                                                      // how: of the records, if it holds records
  virtual void write_rings(
      tensor rings, tensor x,
      const step_rows&) = 0; // x (R, dim) -> [slot][position % ring]; only the last `ring` rows of a sequence land

  virtual void arg_max(tensor ids, tensor x, tensor x_rows,
                       tensor y) = 0; // ids (R) i32: where x[x_rows[i]] + y[i] is largest, y (R, width) f32, the
                                      // lowest of equals; a sum that is no number counts as the least

  virtual void place_anchors(const anchor_args&) = 0;

  // Arithmetic on rows.
  virtual void rms_norm(tensor y, tensor x, tensor weight, float eps) = 0; // y may be x
  virtual void linear(tensor y, tensor x, const matrix&) = 0;              // x (R, in), y (R, out) f32 or activation
  // y[i] = x W_i^T. As that many calls of linear, perhaps in fewer launches; outputs are not inputs.
  virtual void linears(std::span<const tensor> y, tensor x, std::span<const matrix* const> w) {
    for (size_t i = 0; i < w.size(); ++i) linear(y[i], x, *w[i]);
  }
  virtual void linear_grouped(tensor y, tensor x, std::span<const matrix* const>) = 0; // y (R, G, out), x (R, G, in)
  virtual void rope(tensor x, tensor positions, tensor frequencies,
                    bool inverse) = 0;            // x (R, heads, d): last 2 * n_frequencies elements, adjacent pairs
  virtual void quantise(tensor x, quantiser) = 0; // in place over the last dimension
  virtual void add(tensor y, tensor x) = 0;       // y += x
  virtual void scale(tensor x, float by) = 0;

  // Streams (model.md 2.1).
  virtual void mix(const mix_args&) = 0;
  virtual void fold(tensor x, tensor h, tensor pre) = 0; // x (R, D) = sum_m pre[m] h[m]
  // x = the norm of the fold, as the two calls one after the other.
  virtual void fold_norm(tensor x, tensor h, tensor pre, tensor weight, float eps) {
    fold(x, h, pre);
    rms_norm(x, x, weight, eps);
  }
  virtual void expand(tensor h, tensor y, tensor post,
                      tensor comb) = 0; // h[k] = post[k] y + sum_j comb[j][k] h[j], in place
  // add(y, also), then expand, of which only h is wanted: y may be left as it was.
  virtual void expand_sum(tensor h, tensor y, tensor also, tensor post, tensor comb) {
    add(y, also);
    expand(h, y, post, comb);
  }
  // expand_sum (expand where `also` is empty), then x = fold_norm of what h has become.
  virtual void expand_fold_norm(tensor h, tensor y, tensor also, tensor post, tensor comb, tensor x, tensor pre,
                                tensor weight, float eps) {
    also ? expand_sum(h, y, also, post, comb) : expand(h, y, post, comb);
    fold_norm(x, h, pre, weight, eps);
  }
  virtual void spread(tensor h, tensor x) = 0;      // h (R, M, D) = x (R, D) copied M times
  virtual void mean_copies(tensor y, tensor h) = 0; // y (R, D) = mean over M

  // Attention (model.md 2.3 - 2.5).
  virtual void attention(const attention_args&, const step_rows&) = 0;
  // z (R, G, out) = linear_grouped of o, which rope turns back first, as those calls one after the other; z alone is
  // wanted: o may be left as it was.
  virtual void attention_project(tensor z, const attention_args& a, const step_rows& rows, const head_turns& turns,
                                 std::span<const matrix* const> w) {
    if (turns.of_queries) rope(a.q, rows.position, turns.frequencies, false);
    attention(a, rows);
    rope(a.o, rows.position, turns.frequencies, true);
    const auto groups = static_cast<int64_t>(w.size());
    linear_grouped(z, a.o.reshape({a.o.rows(), groups, a.o.row_elements() / groups}), w);
  }
  virtual void compress_pairs(tensor c, tensor u, tensor g, tensor pending,
                              const step_rows&) = 0; // c (R, d): row i holds its group's latent where position i is
                                                     // odd; pending (n_slots, pairs, 2, d): u, g of the last even
                                                     // positions p at [p / 2 % pairs]
  virtual void select_entries(const index_args&, const step_rows&) = 0;

  // Experts (model.md 2.6). `vl` (R) i32: 1 inside an image span, or empty.
  virtual void route(tensor ids, tensor weights, tensor x, const matrix& gate, tensor bias, tensor bias_vl, tensor vl,
                     float scale) = 0; // ids (R, k) i32 best first, weights (R, k)
  virtual void experts(tensor y, tensor x, const expert_set&, tensor ids, tensor weights,
                       float limit) = 0; // y = sum over the slots this rank owns, in slot order
  virtual void gated_mlp(tensor y, tensor x, const matrix& gate, const matrix& up, const matrix& down,
                         float limit) = 0; // y = E(x; 1); limit <= 0: no clamp

  // Engram (engram.md section 5).
  virtual void dequant_rows(tensor y, tensor records, engram_format,
                            int64_t width) = 0; // records (R, cols, record bytes) u8: codes then scales; y (R, cols,
                                                // width); NaN code or scale: NaN out
  virtual void engram_gate(
      tensor h, tensor kv, tensor q_weight, tensor k_weight, tensor dead, tensor gates,
      float eps) = 0; // h (R, M, D) += gate * value; kv (R, M + 1, D); dead (R) i32 or empty; gates (R, M) out or empty

  // Vision tower (vision.md section 2, 3).
  virtual void rope_half(tensor x, tensor angles,
                         int64_t heads) = 0; // x (n, heads, d), angles (n, d/2): half-split form
  virtual void attention_full(tensor o, tensor q, tensor k, tensor v, float scale) = 0; // (n, heads, d), all see all
  virtual void gelu(tensor x) = 0;                                                      // erf form, in place
  virtual void silu_mul(tensor y, tensor gate_up) = 0; // y (n, w) = silu(g) * u, gate_up (n, 2 w), gate first

  // Draws tokens from logits where they are, up to `max_rows` rows a call. nullptr: this backend has none, logits go to
  // the host (gpu/sample.h).
  virtual std::unique_ptr<row_sampler> make_sampler(int64_t /*vocabulary*/, int64_t /*max_rows*/) { return nullptr; }

  // `work` may run at the same time as what is called between now and meet(), behind what was called before. It reads
  // and writes nothing that the calls in between write. The host runs it at once.
  virtual void beside(const std::function<void()>& work) { work(); }
  virtual void meet() {}

  // Bytes from the host in the middle of work. Zero-filled, not posted; throws as `allocate` does.
  virtual std::unique_ptr<mailbox> make_mailbox(int64_t n_bytes, const std::string& what) = 0;
  // Waits until it is posted, then fills the tensors from it, one part behind the other (mailbox::behind) from 0 on.
  // Where nothing runs ahead it must be posted by then.
  virtual void receive(std::span<const tensor> to, const mailbox& from) = 0;
  // Whether a call may return before its work is done, so that the host can prepare a mailbox meanwhile.
  virtual bool runs_ahead() const = 0;

  // Graphs: host capture keeps the closure, replay calls it.
  virtual bool
  can_capture() const = 0; // false: an operation of a step needs the host (a collective through its memory)
  virtual std::unique_ptr<graph> capture(std::function<void()> work) = 0; // `work` has no effect before replay
  virtual void replay(graph&) = 0;

  // Collectives over the rank group; no-ops for one rank.
  virtual int rank() const = 0;
  virtual int n_ranks() const = 0;
  virtual void all_reduce_sum(tensor x) = 0;       // f32
  virtual void all_gather(tensor y, tensor x) = 0; // y (n_ranks, ...) f32
};

class collective;

struct host_backend_config {
  int n_threads = 0;                // 0 is refused; the caller decides
  int64_t memory_bytes = INT64_MAX; // pretended device memory; allocations past it fail by name
  bool scalar_only = false;         // the twins alone: the truth that vector code is compared with
  collective* group = nullptr;      // borrowed; nullptr: one rank
};
std::unique_ptr<backend> make_host_backend(const host_backend_config&);

} // namespace troupe
