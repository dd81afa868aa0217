// The three EXL3 codebooks: a 16-bit trellis state -> the f16 value of a weight, bit for bit.            Spec: exl3.md
// 5
#pragma once

#include "gpu/backend.h"

#include <cstdint>
#include <span>

namespace troupe {

// The multipliers that a pack writes beside its tensors; any other value would decode to garbage.
constexpr uint32_t mul1_multiplier = 0x83DCD12D;
constexpr uint32_t mcg_multiplier = 0xCBAC1FED;

uint16_t codebook_value(stored_matrix::codebook book, uint16_t state); // f16 bits

// All 65536 values as f32. Immutable, made on first use.
std::span<const float> codebook_table(stored_matrix::codebook book);

const char* name(stored_matrix::codebook book); // "mul1"

// Refuses a marker tensor (`name` = mul1 or mcg, int32 value) whose multiplier is not the frozen one; throws
// std::runtime_error naming `module`, expected and found.
void check_codebook_marker(stored_matrix::codebook book, int32_t value, const std::string& module);

} // namespace troupe
