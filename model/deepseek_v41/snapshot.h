// A slot's state as bytes in host memory: window rows in the form of their cache, the pending half group, the tail
// floor. Spec: model.md section 4.
#pragma once

#include "model/deepseek_v41/state.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace troupe::deepseek_v41 {

// Window rows that a snapshot at n holds: positions [n - rows, n). The row at n is written before it is read, so the
// backbone sees window - 1 older ones; a draft block sees the whole window before its anchor.
int64_t snapshot_rows(const config&, bool with_draft);
// Positions that a slot may have run past n and still hold all that a snapshot at n needs.
int64_t snapshot_slack(const config&, const cache_plan&, bool with_draft);
// The largest snapshot, headers included.
int64_t bytes_per_snapshot(const config&, cache_form, bool with_draft);

// Appends nothing: `to` is replaced. `floor`: lowest position whose rows the last layers have seen. Precondition: the
// slot has run at least n_tokens and at most `slack` positions more.
void save_snapshot(backend&, std::span<const layer_cache>, int64_t rows, int32_t slot, int64_t n_tokens, int64_t floor,
                   std::vector<std::byte>& to);
// Throws std::runtime_error that says what does not fit: the magic, version, position, shape or size.
void check_snapshot(std::span<const layer_cache>, int64_t rows, int64_t n_tokens, std::span<const std::byte> from);
// Puts the state back, in any slot, and returns the floor. Throws the same.
int64_t load_snapshot(backend&, std::span<const layer_cache>, int64_t rows, int32_t slot, int64_t n_tokens,
                      std::span<const std::byte> from);

// The cached entries of one block, over those of another.
void copy_block(backend&, const config&, std::span<const layer_cache>, int32_t from, int32_t to);
// The same to and from host memory: source layer by source layer, compressed rows before index keys. Precondition:
// the spans hold bytes_per_block bytes.
void save_block(backend&, const config&, std::span<const layer_cache>, int32_t block, std::span<std::byte> to);
void load_block(backend&, const config&, std::span<const layer_cache>, int32_t block, std::span<const std::byte> from);

} // namespace troupe::deepseek_v41
