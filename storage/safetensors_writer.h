// Writes a checkpoint folder's safetensors files and their index, the bytes coming from a source piece by piece.
#pragma once

#include "storage/tensor_source.h"

#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace troupe {

// One file to write: its tensors in the order of their bytes. Their names need no escapes in JSON.
struct shard_plan {
  std::string file_name;
  std::vector<tensor_info> tensors; // as the source knows them
};

// Bytes of a shard's file, header included.
uint64_t size_bytes(const shard_plan&);

// Writes one shard into `folder`; `wrote` is told of every piece. Throws std::system_error naming the file: it exists,
// cannot be written, no space.
void write_shard(const std::filesystem::path& folder, const shard_plan&, const tensor_source&,
                 const std::function<void(uint64_t n_bytes)>& wrote);

// Writes model.safetensors.index.json over the shards. Throws as above.
void write_index(const std::filesystem::path& folder, std::span<const shard_plan>);

// A file of its own with these bytes. Throws std::system_error naming it: it exists, cannot be written, no space.
void write_new_file(const std::filesystem::path&, const std::string& text);

} // namespace troupe
