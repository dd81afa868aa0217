// Parses the two /proc files. They report no size, so they are read to their end and not through file.h.
#include "storage/meminfo.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <fstream>
#include <iterator>
#include <limits>
#include <string>
#include <string_view>
#include <system_error>
#include <unistd.h>

namespace troupe {
namespace {

std::string read_text(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) throw std::system_error(errno, std::generic_category(), path.string());
  std::string text{std::istreambuf_iterator<char>(in), {}};
  if (in.bad()) throw std::system_error(EIO, std::generic_category(), path.string());
  return text;
}

[[noreturn]] void refuse(const std::filesystem::path& path, std::string_view expected, std::string_view found) {
  throw std::system_error(std::make_error_code(std::errc::bad_message),
                          fmt::format("{}: expected {}, found '{}'", path.string(), expected, found.substr(0, 80)));
}

// The number at the start of `text` after blanks, times `unit`; `expected` and `line` are for the message.
uint64_t number_at(std::string_view text, uint64_t unit, const std::filesystem::path& path, std::string_view expected,
                   std::string_view line) {
  text.remove_prefix(std::min(text.find_first_not_of(" \t"), text.size()));
  uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{} || number > std::numeric_limits<uint64_t>::max() / unit) refuse(path, expected, line);
  return number * unit;
}

// "MemTotal:       24616252 kB" -> bytes.
uint64_t meminfo_bytes(std::string_view text, std::string_view key, const std::filesystem::path& path) {
  const std::string expected = fmt::format("a line '{}: <number> kB'", key);
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    if (!line.starts_with(key) || line.substr(key.size(), 1) != ":") continue;
    if (!line.ends_with(" kB")) refuse(path, expected, line);
    return number_at(line.substr(key.size() + 1), 1024, path, expected, line);
  }
  refuse(path, expected, "no such line");
}

} // namespace

host_memory read_host_memory(const std::filesystem::path& meminfo) {
  const std::string text = read_text(meminfo);
  return {meminfo_bytes(text, "MemTotal", meminfo), meminfo_bytes(text, "MemFree", meminfo),
          meminfo_bytes(text, "MemAvailable", meminfo)};
}

uint64_t read_resident_bytes(const std::filesystem::path& statm) {
  const std::string text = read_text(statm);
  const size_t second = text.find(' '); // "size resident shared ...", in pages
  if (second == std::string::npos) refuse(statm, "two numbers of pages", text);
  const auto page_bytes = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  return number_at(std::string_view(text).substr(second), page_bytes, statm, "two numbers of pages", text);
}

} // namespace troupe
