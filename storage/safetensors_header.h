// The JSON header of one safetensors file -> a list of tensors whose bytes are known to lie in that file.
// A file is: u64 little-endian header size N | N bytes of JSON | data. Spec: model-tensors.md section 1, exl3.md
// section 2.
#pragma once

#include "storage/dtype.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace troupe {

class file;

// A checkpoint that we refuse. The message names the file, the tensor, what was expected and what was found.
class checkpoint_error : public std::runtime_error {
public:
  using std::runtime_error::runtime_error;
};

struct tensor_info {
  std::string name;
  dtype type = dtype::u8;
  std::vector<int64_t> shape; // empty: a scalar, one element
  size_t file = 0;            // index into checkpoint_files::files()
  uint64_t offset = 0;        // from the start of the file; of a tensor in no file: whatever its source makes of it
  uint64_t size_bytes = 0;    // Invariant: product of shape times the size of one element
};

struct safetensors_header {
  uint64_t data_begin = 0;                                   // in the file
  std::vector<tensor_info> tensors;                          // in the order of their bytes
  std::vector<std::pair<std::string, std::string>> metadata; // "__metadata__"
};

// `header_json` is the header without its length word, `file_size` the whole file. Pure. Throws checkpoint_error on
// anything but a header that describes all of the data, each byte once: the tensors neither overlap, leave holes nor
// leave the file; names are unique; dtype x shape is the byte count.
safetensors_header parse_safetensors_header(std::span<const std::byte> header_json, uint64_t file_size,
                                            const std::string& file_name);

// Reads the header of an open file. Recognises what a failed download leaves in place of data (a git-lfs pointer,
// HTML). Throws checkpoint_error, and std::system_error when the file cannot be read.
safetensors_header read_safetensors_header(const file&);

// What a download that went wrong left in place of a file, told by its first bytes (100 are enough): a sentence that
// starts with "this is". Empty: it may be data.
std::string_view impostor(std::string_view head);

// `text` from a file, fit for a message or a log line: at most 200 bytes, control bytes and quotes replaced.
std::string printable(std::string_view text);

} // namespace troupe
