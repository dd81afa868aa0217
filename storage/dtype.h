// Element types of tensors on disk and in memory, under their safetensors names.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace troupe {

enum class dtype : uint8_t {
  f64,
  f32,
  f16,
  bf16,
  f8_e4m3,
  f8_e5m2,
  f8_e8m0,
  i64,
  i32,
  i16,
  i8,
  u64,
  u32,
  u16,
  u8,
  boolean
};

int size_bytes(dtype);                                // of one element
std::string_view name(dtype);                         // "F8_E4M3"
std::optional<dtype> to_dtype(std::string_view name); // nullopt: a name we do not know

} // namespace troupe
