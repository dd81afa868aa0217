// Lays the tensors of a linear out in one allocation and copies them.
#include "gpu/cuda_load.h"

#include "gpu/cuda_check.cuh"
#include "gpu/dequantise.h"

#include <algorithm>
#include <stdexcept>
#include <vector>

namespace troupe {
namespace {

constexpr int64_t alignment = 256;
int64_t aligned(int64_t n) { return (n + alignment - 1) / alignment * alignment; }

// The parts of a checked linear that go to the device, in this order.
struct stored_parts {
  tensor part[4]; // weight, scale, bias; or trellis, suh, svh, bias
  int64_t size_bytes() const {
    int64_t n = 0;
    for (const tensor& t : part) n += t ? aligned(t.size_bytes()) : 0;
    return n;
  }
};

stored_parts parts_of(const stored_matrix& m) {
  if (m.how == stored_matrix::format::exl3) return {{m.trellis, m.suh, m.svh, m.bias}};
  return {{m.weight, m.scale, m.bias, {}}};
}

plain_view plain_of(const stored_matrix& m, std::byte* const (&at)[4]) {
  plain_view v;
  v.weight = at[0];
  v.scale = reinterpret_cast<const uint8_t*>(at[1]);
  v.rows_a_scale = m.how == stored_matrix::format::fp8_block ? 32 : 1;
  using how = stored_matrix::format;
  using to = plain_view::format;
  if (m.how == how::fp4)
    v.how = to::fp4;
  else if (m.how == how::fp8_block || m.how == how::fp8_row)
    v.how = to::fp8;
  else
    v.how = m.weight.type == dtype::f32 ? to::f32 : m.weight.type == dtype::bf16 ? to::bf16 : to::f16;
  return v;
}

trellis_view trellis_of(const stored_matrix& padded, std::byte* const (&at)[4]) {
  trellis_view v;
  v.words = reinterpret_cast<const uint32_t*>(at[0]);
  v.suh = reinterpret_cast<const uint16_t*>(at[1]);
  v.svh = reinterpret_cast<const uint16_t*>(at[2]);
  v.in = static_cast<int32_t>(padded.in);
  v.out = static_cast<int32_t>(padded.out);
  v.rate = static_cast<int32_t>(padded.trellis.shape[2] / 8);
  v.book = padded.book;
  return v;
}

// From the file's order (tile rows, tiles of a row) to chunks of eight tiles: (in / 16, out / 128, 8 tiles) ->
// (out / 128, in / 16, 8 tiles). `n_fours`: 16-byte pieces of eight tiles. Grid (chunks, tile rows).
__global__ void order_by_chunks(uint4* to, const uint4* from, int n_fours) {
  const int64_t chunk = blockIdx.x, row = blockIdx.y, n_chunks = gridDim.x, n_rows = gridDim.y;
  for (int i = threadIdx.x; i < n_fours; i += blockDim.x)
    to[(chunk * n_rows + row) * n_fours + i] = from[(row * n_chunks + chunk) * n_fours + i];
}

// `staging` holds as many bytes as the trellis.
void copy_trellis(std::byte* to, const stored_matrix& m, std::byte* staging, host_copies& way, cuda_stream on) {
  const tensor& t = m.trellis;
  way.to_device(staging, t.data, t.size_bytes(), on, m.name.c_str());
  const dim3 grid(static_cast<unsigned>(t.shape[1] / 8), static_cast<unsigned>(t.shape[0]));
  order_by_chunks<<<grid, 64, 0, on>>>(reinterpret_cast<uint4*>(to), reinterpret_cast<const uint4*>(staging),
                                       static_cast<int>(t.shape[2]));
  cuda_check_launch(m.name.c_str());
}

// Copies m to `at` and moves `at` behind it. `checked`: what check_stored made of m.
matrix_view copy_matrix(const stored_matrix& m, const stored_matrix& checked, std::byte*& at, std::byte* staging,
                        host_copies& way, cuda_stream on) {
  const stored_parts parts = parts_of(m);
  std::byte* place[4] = {};
  for (int i = 0; i < 4; ++i) {
    const tensor& t = parts.part[i];
    if (!t) continue;
    place[i] = at;
    if (i == 0 && m.how == stored_matrix::format::exl3)
      copy_trellis(at, m, staging, way, on);
    else
      way.to_device(at, t.data, t.size_bytes(), on, m.name.c_str());
    at += aligned(t.size_bytes());
  }
  matrix_view v;
  v.in = static_cast<int32_t>(m.in);
  v.out = static_cast<int32_t>(m.out);
  v.is_trellis = m.how == stored_matrix::format::exl3;
  if (v.is_trellis)
    v.trellis = trellis_of(checked, place);
  else
    v.plain = plain_of(m, place);
  v.bias = reinterpret_cast<const float*>(place[v.is_trellis ? 3 : 2]);
  return v;
}

// Memory for a load, given back after the copies are done.
struct staging_memory {
  staging_memory(cuda_memory& from, int64_t size_bytes, cuda_stream stream)
      : memory(from), on(stream), at(size_bytes > 0 ? from.take(size_bytes, "staging of a load", stream) : nullptr) {}
  ~staging_memory() {
    if (at == nullptr) return;
    cudaStreamSynchronize(on);
    memory.give_back(at);
  }
  cuda_memory& memory;
  cuda_stream on;
  std::byte* at;
};

std::unique_ptr<cuda_matrix> owner_of(const stored_matrix& m, const matrix_view& v, int64_t size_bytes) {
  auto made = std::make_unique<cuda_matrix>();
  made->view = v;
  made->out = m.out;
  made->in = m.in;
  made->size_bytes = size_bytes;
  return made;
}

bool same_form(const matrix_view& a, const matrix_view& b) {
  return a.is_trellis == b.is_trellis && a.in == b.in && a.out == b.out && (a.bias == nullptr) == (b.bias == nullptr) &&
         (a.is_trellis ? a.trellis.rate == b.trellis.rate && a.trellis.book == b.trellis.book
                       : a.plain.how == b.plain.how && a.plain.rows_a_scale == b.plain.rows_a_scale);
}

void expect_form(const matrix_view& v, const matrix_view& of, const std::string& name, const std::string& first) {
  const bool fits = same_form(v, of) && v.bias == nullptr;
  if (!fits)
    throw std::runtime_error(name +
                             ": the experts of a layer share one width, format and rate on this backend, expected " +
                             "that of " + first);
}

} // namespace

std::unique_ptr<cuda_matrix> load_cuda_matrix(const stored_matrix& m, cuda_memory& memory, host_copies& way,
                                              cuda_stream on) {
  const stored_matrix checked = check_stored(m);
  const int64_t bytes = parts_of(m).size_bytes();
  std::byte* const block = memory.take(bytes, m.name, on);
  std::byte* at = block;
  auto made = owner_of(m, {}, bytes);
  made->release = [&memory, block] { memory.give_back(block); };
  const staging_memory staging(memory, m.how == stored_matrix::format::exl3 ? m.trellis.size_bytes() : 0, on);
  made->view = copy_matrix(m, checked, at, staging.at, way, on);
  return made;
}

std::unique_ptr<cuda_expert_set> load_cuda_experts(std::span<const stored_expert> stored, int32_t first,
                                                   cuda_memory& memory, host_copies& way, cuda_stream on) {
  auto set = std::make_unique<cuda_expert_set>();
  set->first = first;
  set->n_experts = static_cast<int32_t>(stored.size());
  if (stored.empty()) return set;
  std::vector<stored_matrix> checked;
  const int64_t table_bytes = aligned(static_cast<int64_t>(stored.size() * 3 * sizeof(matrix_view)));
  int64_t bytes = table_bytes, largest = 0;
  for (const stored_expert& e : stored)
    for (const stored_matrix* m : {&e.gate, &e.up, &e.down}) {
      checked.push_back(check_stored(*m));
      bytes += parts_of(*m).size_bytes();
      if (m->how == stored_matrix::format::exl3) largest = std::max(largest, m->trellis.size_bytes());
    }
  std::byte* const block = memory.take(bytes, "experts from " + stored[0].gate.name, on);
  std::byte* at = block + table_bytes;
  auto holder = owner_of(stored[0].gate, {}, bytes);
  holder->release = [&memory, block] { memory.give_back(block); };
  set->owned.push_back(std::move(holder));
  set->size_bytes = bytes;
  const staging_memory staging(memory, largest, on);
  std::vector<matrix_view> table;
  for (const stored_expert& e : stored)
    for (const stored_matrix* m : {&e.gate, &e.up, &e.down}) {
      table.push_back(copy_matrix(*m, checked[table.size()], at, staging.at, way, on));
      // The gate and up products of an expert are one launch, so those two share a form as well.
      const size_t like = m == &e.down ? 2 : 0;
      expect_form(table.back(), table[std::min(like, table.size() - 1)], m->name,
                  like == 0 ? stored[0].gate.name : stored[0].down.name);
      if (table.back().is_trellis != table[0].is_trellis)
        throw std::runtime_error(m->name + ": experts are all EXL3 or none of them on this backend");
    }
  way.to_device(block, table.data(), static_cast<int64_t>(table.size() * sizeof(matrix_view)), on, "experts: table");
  set->table = reinterpret_cast<const matrix_view*>(block);
  set->gate = table[0];
  set->up = table[1];
  set->down = table[2];
  set->is_trellis = table[0].is_trellis;
  return set;
}

} // namespace troupe
