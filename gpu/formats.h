// Number formats of checkpoints and caches, value by value, and the three quantise-dequantise operations of the model.
// All conversions to f32 are exact; all conversions from f32 round to nearest, ties to even.      Spec: model.md 2.7,
// model-tensors.md 1, exl3.md 14.1.
#pragma once

#include "gpu/backend.h"

#include <bit>
#include <cstdint>

namespace troupe {

inline float bf16_to_f32(uint16_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }
uint16_t f32_to_bf16(float); // NaN stays NaN

float f16_to_f32(uint16_t bits);
uint16_t f32_to_f16(float); // overflow gives infinity
inline float round_to_f16(float x) { return f16_to_f32(f32_to_f16(x)); }

float e4m3_to_f32(uint8_t code); // 0x7F and 0xFF are NaN, there are no infinities
uint8_t f32_to_e4m3(float);      // saturates at 448; NaN gives 0x7F
float e5m2_to_f32(uint8_t code);
float e8m0_to_f32(uint8_t code); // 2^(code - 127), code 255 is NaN
float e2m1_to_f32(uint8_t code); // low four bits: 0 .5 1 1.5 2 3 4 6, bit 3 is the sign
uint8_t f32_to_e2m1(float);      // saturates at 6

// 2^ceil(log2(v)) of a positive normal v, from its bits.                                             Spec: model.md 2.7
float round_up_to_power_of_two(float v);

// out[0 .. t.n_elements()) = t, exactly (f64: rounded). Throws std::runtime_error naming `what` for a type that is not
// a float format. Precondition: t.data is aligned to its element.
void to_f32(float* out, const tensor& t, const char* what);

// In place over groups of 32 or 16 of the last dimension of x (..., n) f32.                          Spec: model.md 2.7
//   n is a multiple of the group | rows == 0 is a no-op | no allocation
void quantise_host(tensor x, quantiser how);

} // namespace troupe
