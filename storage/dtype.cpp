// The table of element types: enum, safetensors name, size.
#include "storage/dtype.h"

#include "storage/check.h"

#include <array>
#include <cstddef>

namespace troupe {
namespace {

struct dtype_row {
  dtype type;
  std::string_view name;
  int size_bytes;
};

// Invariant: in the order of the enum, so that a dtype is its own index.
constexpr std::array<dtype_row, 16> rows = {{{dtype::f64, "F64", 8},
                                             {dtype::f32, "F32", 4},
                                             {dtype::f16, "F16", 2},
                                             {dtype::bf16, "BF16", 2},
                                             {dtype::f8_e4m3, "F8_E4M3", 1},
                                             {dtype::f8_e5m2, "F8_E5M2", 1},
                                             {dtype::f8_e8m0, "F8_E8M0", 1},
                                             {dtype::i64, "I64", 8},
                                             {dtype::i32, "I32", 4},
                                             {dtype::i16, "I16", 2},
                                             {dtype::i8, "I8", 1},
                                             {dtype::u64, "U64", 8},
                                             {dtype::u32, "U32", 4},
                                             {dtype::u16, "U16", 2},
                                             {dtype::u8, "U8", 1},
                                             {dtype::boolean, "BOOL", 1}}};

constexpr bool in_enum_order() {
  for (size_t i = 0; i < rows.size(); ++i)
    if (static_cast<size_t>(rows[i].type) != i) return false;
  return rows.size() == static_cast<size_t>(dtype::boolean) + 1;
}
static_assert(in_enum_order());

const dtype_row& row(dtype t) {
  TROUPE_CHECK(static_cast<size_t>(t) < rows.size(), "a dtype is one of its enumerators");
  return rows[static_cast<size_t>(t)];
}

} // namespace

int size_bytes(dtype t) { return row(t).size_bytes; }

std::string_view name(dtype t) { return row(t).name; }

std::optional<dtype> to_dtype(std::string_view name) {
  for (const dtype_row& r : rows)
    if (r.name == name) return r.type;
  return std::nullopt;
}

} // namespace troupe
