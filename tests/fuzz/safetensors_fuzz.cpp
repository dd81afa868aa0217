// libFuzzer target: any bytes as the header of a safetensors file end in a list of tensors or in a checkpoint_error.
// Input: the size of the data in 8 bytes (little-endian), then the header JSON. Build and run, from the root:
//   clang++ -std=c++20 -g -O1 -fsanitize=fuzzer,address,undefined -I. -DSPDLOG_COMPILED_LIB -DSPDLOG_FMT_EXTERNAL
//     tests/fuzz/safetensors_fuzz.cpp storage/{safetensors_header,file,dtype,check,log}.cpp -lsimdjson -lspdlog -lfmt
//     -o safetensors_fuzz
//   ./safetensors_fuzz -max_len=4096 <a folder for new inputs> tests/fuzz/corpus/safetensors
#include "storage/check.h"
#include "storage/safetensors_header.h"

#include <cstdint>
#include <span>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t n_bytes) {
  if (n_bytes < 8) return 0;
  uint64_t data_bytes = 0;
  for (size_t i = 8; i-- > 0;) data_bytes = data_bytes << 8 | bytes[i];
  const std::span<const uint8_t> json(bytes + 8, n_bytes - 8);
  const uint64_t begin = 8 + json.size();
  const uint64_t file_size = data_bytes > UINT64_MAX - begin ? UINT64_MAX : begin + data_bytes;
  try {
    const troupe::safetensors_header header = troupe::parse_safetensors_header(std::as_bytes(json), file_size, "fuzz");
    uint64_t end = begin;
    for (const troupe::tensor_info& t : header.tensors) {
      TROUPE_CHECK(t.offset == end, "tensors tile the data in order");
      end += t.size_bytes;
    }
    TROUPE_CHECK(end == file_size, "tensors tile the data to its end");
  } catch (const troupe::checkpoint_error&) {}
  return 0;
}
