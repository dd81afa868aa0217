// The tensors of a checkpoint: one safetensors file, a folder of shards with an index, or a source that makes them when
// they are read. Knows names, shapes and bytes, no model.
#pragma once

#include "storage/file.h"
#include "storage/safetensors_header.h"
#include "storage/tensor_source.h"

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace troupe {

// Owns the open files. Everything but construction is const and may be used from several threads at once.
class checkpoint_files {
public:
  struct shard {
    file data;
    std::vector<std::pair<std::string, std::string>> metadata; // "__metadata__" of its header
  };

  // `path`: a folder with model.safetensors.index.json (the index alone decides which files belong), a folder with a
  // single model.safetensors, or a .safetensors file. All headers are read and checked here, no weights are. Throws
  // checkpoint_error naming file and tensor: a shard that is missing, short, outside the folder or no safetensors; a
  // tensor that the index names and its file lacks, that a file has and the index does not name, or that two files
  // have; in a folder, elements wider than a byte at an odd offset.
  explicit checkpoint_files(const std::filesystem::path& path);

  // Tensors in no file. Their names are unique, `size_bytes` is dtype x shape; `file` and `offset` are the source's
  // own.
  checkpoint_files(std::vector<tensor_info>, std::shared_ptr<const tensor_source>);

  // None where the tensors come from a source.
  const std::vector<shard>& files() const { return files_; }
  const std::vector<tensor_info>& tensors() const {
    return tensors_;
  }                                             // by file, then by offset: the order to read them in
  std::string origin(const tensor_info&) const; // its file, or its source, for messages
  const std::shared_ptr<const tensor_source>& source() const { return source_; } // null: files
  const tensor_info* find(std::string_view name) const;                          // nullptr: no such tensor; owned here

  // The bytes of a tensor of this checkpoint, as stored (little-endian, row-major). Throws std::system_error naming
  // file and tensor when the file is short or unreadable.
  std::vector<std::byte> read(const tensor_info&) const;
  void read(const tensor_info&, std::span<std::byte> out) const; // Precondition: out.size() == size_bytes
  // Precondition: byte_offset + out.size() <= size_bytes.
  void read_range(const tensor_info&, uint64_t byte_offset, std::span<std::byte> out) const;

  // Lets go of the page cache of all files (see file::drop_cache), once the weights are where they belong.
  void drop_cache() const;

private:
  void open_file(const std::filesystem::path&, bool needs_alignment);
  void open_index(const std::filesystem::path& index_path);
  void index_names();

  std::vector<shard> files_;
  std::shared_ptr<const tensor_source> source_; // shared with the row stores, which outlive the checkpoint
  std::vector<tensor_info> tensors_;
  std::unordered_map<std::string_view, size_t> by_name_; // views into tensors_
};

} // namespace troupe
