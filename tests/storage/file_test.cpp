// Positional reads: whole buffers or an error that says where.
#include "storage/check.h"
#include "storage/file.h"
#include "tests/safetensors_writer.h"
#include "tests/says.h"

#include <doctest/doctest.h>

#include <cerrno>
#include <string>
#include <sys/stat.h>
#include <system_error>
#include <utility>

using namespace troupe;
using test::temp_folder;

namespace {

std::string read_text(const file& f, uint64_t offset, size_t n) {
  std::string text(n, '?');
  f.read(offset, std::as_writable_bytes(std::span(text)));
  return text;
}

// The error of `action`: its number and its text.
template <class Action> std::pair<int, std::string> error_of(Action action) {
  try {
    action();
  } catch (const std::system_error& e) { return {e.code().value(), e.what()}; }
  return {0, "no error"};
}

} // namespace

TEST_CASE("file: reads any range, the empty one too") {
  temp_folder folder;
  test::write_text(folder.path() / "a", "0123456789");
  const file f(folder.path() / "a");
  CHECK(f.size_bytes() == 10);
  CHECK(read_text(f, 0, 10) == "0123456789");
  CHECK(read_text(f, 3, 4) == "3456");
  CHECK(read_text(f, 10, 0).empty());
  f.drop_cache();
  CHECK(read_text(f, 0, 10) == "0123456789");
}

TEST_CASE("file: a moved file still reads") {
  temp_folder folder;
  test::write_text(folder.path() / "a", "abc");
  test::write_text(folder.path() / "b", "xyz");
  file f(folder.path() / "a");
  file g(std::move(f));
  CHECK(read_text(g, 0, 3) == "abc");
  g = file(folder.path() / "b");
  CHECK(read_text(g, 0, 3) == "xyz");
}

TEST_CASE("file: what cannot be opened is refused with its path") {
  temp_folder folder;
  const auto [absent_code, absent] = error_of([&] { file f(folder.path() / "absent"); });
  CHECK(absent_code == ENOENT);
  CHECK(says(absent, (folder.path() / "absent").string()));
  CHECK(error_of([&] { file f(folder.path()); }).first == EISDIR);
  REQUIRE(::mkfifo((folder.path() / "fifo").c_str(), 0600) == 0);
  CHECK(says(error_of([&] { file f(folder.path() / "fifo"); }).second, "not a regular file"));
}

TEST_CASE("file: a read past the end says path, tensor, offset, expected and found") {
  temp_folder folder;
  test::write_text(folder.path() / "a", "0123456789");
  const file f(folder.path() / "a");
  std::byte out[8];
  const auto [code, text] = error_of([&] { f.read(6, out, "layers.0.x"); });
  CHECK(code == EIO);
  CHECK(says(text, (folder.path() / "a").string() +
                       ": tensor 'layers.0.x': short read at offset 6: expected 8 bytes, found 4"));
}

TEST_CASE("file: a file truncated after it was opened is an error and no signal") {
  temp_folder folder;
  test::write_text(folder.path() / "a", std::string(100000, 'x'));
  const file f(folder.path() / "a");
  std::filesystem::resize_file(folder.path() / "a", 60000);
  std::vector<std::byte> out(100000);
  CHECK(says(error_of([&] { f.read(0, out); }).second, "found 60000 (the file had 100000 bytes when opened)"));
}

TEST_CASE("file: an interrupted read goes on, an I/O error and a sudden end are reported") {
  temp_folder folder;
  test::write_text(folder.path() / "a", "0123456789");
  const file f(folder.path() / "a");
  fault::arm("file.interrupted", 0, 3);
  CHECK(read_text(f, 2, 3) == "234");
  std::byte out[8];
  fault::arm("file.io_error");
  const auto [code, text] = error_of([&] { f.read(1, out); });
  CHECK(code == EIO);
  CHECK(says(text, "read failed at offset 1: expected 8 bytes, found 0"));
  fault::arm("file.short_read");
  CHECK(says(error_of([&] { f.read(1, out); }).second, "short read at offset 1: expected 8 bytes, found 0"));
  fault::disarm_all();
}
