// Where the bytes of tensors come from that are in no file: made when they are read.
#pragma once

#include "storage/safetensors_header.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace troupe {

// Reads are const and may run from several threads at once.
class tensor_source {
public:
  virtual ~tensor_source() = default;
  // What stands for the file name in messages.
  virtual std::string name() const = 0;
  // Fills `out` with the bytes of a tensor of this source from `byte_offset` on. A byte is the same whatever range it
  // is read in. Precondition: the range lies in the tensor.
  virtual void read(const tensor_info&, uint64_t byte_offset, std::span<std::byte> out) const = 0;
};

} // namespace troupe
