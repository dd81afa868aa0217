// Rows of a cache as records of codes and scales: what a quantiser makes of a row, in the bytes that this takes.
// Spec: model.md sections 2.7 and 4.
//
// A record is the codes of its elements (fp8_32: e4m3, one byte; else e2m1, two a byte, the even element low), then a
// scale for each group (fp4_e4m3_16: e4m3; else e8m0), then zeros up to a multiple of four bytes. The released widths
// need none: 528 bytes of a window row, 288 of a latent, 68 of an index key.
#pragma once

#include "gpu/backend.h"

namespace troupe {

inline constexpr int64_t group_of(quantiser how) { return how == quantiser::fp4_e4m3_16 ? 16 : 32; }
inline constexpr int64_t record_code_bytes(quantiser how, int64_t dim) {
  return how == quantiser::fp8_32 ? dim : dim / 2;
}
// Precondition of all that follows: dim is a whole number of groups.
inline constexpr int64_t record_bytes(quantiser how, int64_t dim) {
  return (record_code_bytes(how, dim) + dim / group_of(how) + 3) / 4 * 4;
}
// Of a row of `dim` floats in either form.
inline constexpr int64_t cache_row_bytes(cache_form form, quantiser how, int64_t dim) {
  return form == cache_form::records ? record_bytes(how, dim) : dim * static_cast<int64_t>(sizeof(float));
}

// Whether a cache holds records (u8, the last dimension a record) rather than f32 rows of `dim`; checks its width.
bool holds_records(const tensor& cache, quantiser how, int64_t dim);

// Bytes from one row of such a cache to the next.
inline int64_t stored_row_bytes(const tensor& cache) {
  return cache.shape[cache.rank - 1] * (cache.type == dtype::f32 ? static_cast<int64_t>(sizeof(float)) : 1);
}

// Exact for what quantise_host makes of finite floats below 2^127, zeros with their signs; other values are rounded. A
// group with a value that is not finite becomes NaN.
void encode_record(std::byte* to, const float* x, int64_t dim, quantiser how);
void decode_record(float* to, const std::byte* from, int64_t dim, quantiser how);

} // namespace troupe
