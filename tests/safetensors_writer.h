// Writes small safetensors files for tests; also writes broken ones, since a header can be given as text.
#pragma once

#include "storage/dtype.h"

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <span>
#include <stdexcept>
#include <string>
#include <system_error>
#include <vector>

namespace troupe::test {

struct tensor_to_write {
  std::string name;
  dtype type = dtype::u8;
  std::vector<int64_t> shape;
  std::vector<std::byte> bytes; // little-endian, row-major
};

template <class T> std::vector<std::byte> to_bytes(const std::vector<T>& values) {
  std::vector<std::byte> bytes(values.size() * sizeof(T));
  if (!bytes.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

inline void write_text(const std::filesystem::path& path, const std::string& text) {
  std::ofstream out(path, std::ios::binary);
  out.write(text.data(), static_cast<std::streamsize>(text.size()));
  out.close();
  if (!out) throw std::runtime_error(path.string() + ": cannot write");
}

// Length word, `header_json` as it is, `data` as it is.
inline void write_raw_safetensors(const std::filesystem::path& path, const std::string& header_json,
                                  std::span<const std::byte> data) {
  std::string text;
  for (int i = 0; i < 8; ++i) text += static_cast<char>(static_cast<uint64_t>(header_json.size()) >> (8 * i) & 0xFF);
  text += header_json;
  text.append(reinterpret_cast<const char*>(data.data()), data.size());
  write_text(path, text);
}

// A file as a writer should make it: data in the given order without holes, header padded with blanks to 8 bytes. Names
// are written as they are: they must not need escapes.
inline void write_safetensors(const std::filesystem::path& path, const std::vector<tensor_to_write>& tensors) {
  std::string header = R"({"__metadata__":{"format":"pt"})";
  std::vector<std::byte> data;
  for (const tensor_to_write& t : tensors) {
    std::string shape;
    for (const int64_t n : t.shape) shape += (shape.empty() ? "" : ",") + std::to_string(n);
    header += ",\"" + t.name + "\":{\"dtype\":\"" + std::string(name(t.type)) + "\",\"shape\":[" + shape +
              "],\"data_offsets\":[" + std::to_string(data.size()) + "," +
              std::to_string(data.size() + t.bytes.size()) + "]}";
    data.insert(data.end(), t.bytes.begin(), t.bytes.end());
  }
  header += "}";
  while (header.size() % 8 != 0) header += ' ';
  write_raw_safetensors(path, header, data);
}

// A folder that is empty at first and gone with its contents at the end.
class temp_folder {
public:
  temp_folder() {
    std::string name = (std::filesystem::temp_directory_path() / "troupe-test-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error(name + ": cannot make a temporary folder");
    path_ = name;
  }
  ~temp_folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  temp_folder(const temp_folder&) = delete;
  temp_folder& operator=(const temp_folder&) = delete;
  const std::filesystem::path& path() const { return path_; }

private:
  std::filesystem::path path_;
};

} // namespace troupe::test
