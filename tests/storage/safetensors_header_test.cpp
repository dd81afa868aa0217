// The header of one file: what is read from it and every way in which it is refused.
#include "storage/file.h"
#include "storage/safetensors_header.h"
#include "tests/safetensors_writer.h"
#include "tests/says.h"

#include <doctest/doctest.h>

#include <string>
#include <vector>

using namespace troupe;
using test::temp_folder;

namespace {

safetensors_header parse(const std::string& json, uint64_t data_bytes) {
  return parse_safetensors_header(std::as_bytes(std::span(json)), 8 + json.size() + data_bytes, "f.safetensors");
}

// The message of the refusal, "accepted" when there was none.
std::string refusal(const std::string& json, uint64_t data_bytes) {
  try {
    parse(json, data_bytes);
  } catch (const checkpoint_error& e) { return e.what(); }
  return "accepted";
}

std::string refusal_of_file(const std::string& content) {
  temp_folder folder;
  test::write_text(folder.path() / "f.safetensors", content);
  try {
    read_safetensors_header(file(folder.path() / "f.safetensors"));
  } catch (const checkpoint_error& e) { return e.what(); }
  return "accepted";
}

std::string entry(const std::string& name, const std::string& type, const std::string& shape,
                  const std::string& offsets) {
  return "\"" + name + "\":{\"dtype\":\"" + type + "\",\"shape\":[" + shape + "],\"data_offsets\":[" + offsets + "]}";
}

// Checks that the message names the file and has all of `parts`.
void check_refusal(const std::string& message, const std::vector<std::string>& parts) {
  INFO(message);
  CHECK(says(message, "f.safetensors: "));
  for (const std::string& part : parts) {
    CAPTURE(part);
    CHECK(says(message, part));
  }
}

} // namespace

TEST_CASE("safetensors_header: names, types, shapes, metadata and places are read") {
  const std::string json = R"({"__metadata__":{"format":"pt","by":"a test"},)" + entry("b", "F32", "2,3", "8,32") +
                           "," + entry("a", "I64", "", "0,8") + "," + entry("none", "BF16", "0,7", "32,32") + "}  ";
  const safetensors_header h = parse(json, 24 + 8);
  REQUIRE(h.tensors.size() == 3);
  const uint64_t data = 8 + json.size();
  CHECK(h.tensors[0].name == "a");
  CHECK(h.tensors[0].shape.empty());
  CHECK(h.tensors[0].offset == data);
  CHECK(h.tensors[0].size_bytes == 8);
  CHECK(h.tensors[1].name == "b");
  CHECK(h.tensors[1].type == dtype::f32);
  CHECK(h.tensors[1].shape == std::vector<int64_t>{2, 3});
  CHECK(h.tensors[1].offset == data + 8);
  CHECK(h.tensors[1].size_bytes == 24);
  CHECK(h.tensors[2].size_bytes == 0);
  CHECK(h.metadata == std::vector<std::pair<std::string, std::string>>{{"format", "pt"}, {"by", "a test"}});
  CHECK(parse("{}", 0).tensors.empty());
}

TEST_CASE("safetensors_header: every element type of the checkpoints is known") {
  for (const auto& [type, size] : std::vector<std::pair<std::string, int>>{{"F64", 8},
                                                                           {"F32", 4},
                                                                           {"F16", 2},
                                                                           {"BF16", 2},
                                                                           {"F8_E4M3", 1},
                                                                           {"F8_E5M2", 1},
                                                                           {"F8_E8M0", 1},
                                                                           {"I64", 8},
                                                                           {"I32", 4},
                                                                           {"I16", 2},
                                                                           {"I8", 1},
                                                                           {"U64", 8},
                                                                           {"U32", 4},
                                                                           {"U16", 2},
                                                                           {"U8", 1},
                                                                           {"BOOL", 1}}) {
    CAPTURE(type);
    CHECK(parse("{" + entry("t", type, "3", "0," + std::to_string(3 * size)) + "}", 3 * size).tensors[0].size_bytes ==
          static_cast<uint64_t>(3 * size));
  }
}

TEST_CASE("safetensors_header: a tensor of more than 4 GiB keeps its 64 bits") {
  const std::string json = "{" + entry("big", "F8_E4M3", "384006168,256", "0,98305579008") + "," +
                           entry("after", "F8_E8M0", "8", "98305579008,98305579016") + "}";
  const safetensors_header h = parse(json, 98305579016);
  CHECK(h.tensors[0].size_bytes == 98305579008u);
  CHECK(h.tensors[1].offset == 98305579008u + 8 + json.size());
}

TEST_CASE("safetensors_header: text that is not the JSON of a header is refused") {
  const std::string good = entry("t", "U8", "2", "0,2");
  for (const std::string& json :
       {std::string(), std::string(" {}"), std::string("[]"), std::string("null"), std::string("{"), std::string("{]"),
        "{" + good, "{" + good + ",}", "{" + good + "}}", "{" + good + "} {}", "{" + good + "}" + std::string(1, '\0'),
        "{" + good + " " + good + "}", std::string("{\"t\""), std::string("{\"t\":{\"dtype\":\"U8\"\"shape\":[]}}"),
        std::string("{\"\xff\":{}}")}) {
    CAPTURE(json);
    check_refusal(refusal(json, 2), {"not JSON"});
  }
}

TEST_CASE("safetensors_header: an entry of the wrong form is refused with what was found") {
  check_refusal(refusal(R"({"t":5})", 0), {"tensor 't': ", "expected an object, found 5"});
  check_refusal(refusal(R"({"t":})", 0), {"tensor 't': ", "expected an object, found }"});
  check_refusal(refusal(R"({"t":{"dtype":7,"shape":[],"data_offsets":[0,1]}})", 1),
                {"'t'", "expected a dtype", "found 7"});
  check_refusal(refusal(R"({"t":{"dtype":"U8","shape":3,"data_offsets":[0,1]}})", 1),
                {"shape: expected a list", "found 3"});
  check_refusal(refusal(R"({"t":{"dtype":"U8","shape":[],"data_offsets":[0]}})", 1),
                {"data_offsets: expected 2 numbers, found 1"});
  check_refusal(refusal(R"({"t":{"dtype":"U8","shape":[],"data_offsets":[0,1,2]}})", 1),
                {"data_offsets: expected at most 2"});
  check_refusal(refusal(R"({"t":{"dtype":"U8","shape":[]}})", 1), {"'t': data_offsets is missing"});
  check_refusal(refusal(R"({"t":{"shape":[],"data_offsets":[0,1]}})", 1), {"'t': dtype is missing"});
  check_refusal(refusal(R"({"t":{"dtype":"U8","data_offsets":[0,1]}})", 1), {"'t': shape is missing"});
  check_refusal(refusal(R"({"t":{"dtype":"U8","dtype":"U8","shape":[],"data_offsets":[0,1]}})", 1),
                {"each once, found 'dtype'"});
  check_refusal(refusal(R"({"t":{"dtype":"U8","shape":[],"data_offsets":[0,1],"more":0}})", 1), {"found 'more'"});
  check_refusal(refusal(R"({"__metadata__":{"a":1}})", 0), {"'__metadata__'", "expected a string, found 1"});
}

TEST_CASE("safetensors_header: unknown types, bad dimensions and overflowing shapes are refused") {
  check_refusal(refusal("{" + entry("t", "F4_E2M1", "4", "0,2") + "}", 2), {"tensor 't': unknown dtype 'F4_E2M1'"});
  check_refusal(refusal("{" + entry("t", "U8", "-1", "0,1") + "}", 1), {"shape: expected", "found -1"});
  check_refusal(refusal("{" + entry("t", "U8", "1.5", "0,1") + "}", 1), {"shape: expected", "found 1.5"});
  check_refusal(refusal("{" + entry("t", "U8", "9223372036854775808", "0,1") + "}", 1),
                {"shape: ", "9223372036854775808"});
  check_refusal(refusal("{" + entry("t", "U8", "4294967296,4294967296", "0,0") + "}", 0), {"does not fit in 63 bits"});
  check_refusal(refusal("{" + entry("t", "F32", "4611686018427387904", "0,0") + "}", 0), {"does not fit in 63 bits"});
  check_refusal(refusal("{" + entry("t", "U8", "4294967296,4294967296,0", "0,0") + "}", 0),
                {"does not fit in 63 bits"});
  check_refusal(refusal("{" + entry("t", "U8", "1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1", "0,1") + "}", 1), {"at most 16"});
}

TEST_CASE("safetensors_header: dtype x shape must be the byte count") {
  check_refusal(refusal("{" + entry("t", "BF16", "2,3", "0,11") + "}", 11),
                {"tensor 't': BF16 [2, 3] takes 12 bytes, data_offsets [0, 11] hold 11"});
  check_refusal(refusal("{" + entry("t", "U8", "4", "4,0") + "}", 4), {"data_offsets [4, 0] run backwards"});
}

TEST_CASE("safetensors_header: offsets that overlap, leave holes or leave the file are refused") {
  const std::string a = entry("a", "U8", "4", "0,4");
  check_refusal(refusal("{" + a + "," + entry("b", "U8", "4", "2,6") + "}", 6), {"'b'", "[2, 6] overlap those of 'a'"});
  check_refusal(refusal("{" + a + "," + entry("b", "U8", "4", "0,4") + "}", 4), {"overlap"});
  check_refusal(refusal("{" + a + "," + entry("b", "U8", "0", "2,2") + "}", 4), {"'b'", "overlap"});
  check_refusal(refusal("{" + a + "," + entry("b", "U8", "4", "6,10") + "}", 10),
                {"'b'", "leave a hole: no tensor owns bytes 4 to 6"});
  check_refusal(refusal("{" + entry("b", "U8", "4", "2,6") + "}", 6), {"no tensor owns bytes 0 to 2"});
  check_refusal(
      refusal("{" + a + "," + entry("b", "U8", "4", "4,8") + "}", 7),
      {"'b'", "the file is short or data_offsets [4, 8] are out of bounds", "at least 8 bytes of data, found 7"});
  check_refusal(refusal("{" + entry("b", "U8", "0", "9223372036854775807,9223372036854775807") + "}", 4), {"'b'"});
  check_refusal(refusal("{" + a + "}", 9), {"5 bytes at the end belong to no tensor"});
}

TEST_CASE("safetensors_header: a name that comes twice is refused, an escaped spelling too") {
  const std::string a = entry("abc", "U8", "1", "0,1");
  check_refusal(refusal("{" + a + "," + entry("abc", "U8", "1", "1,2") + "}", 2), {"tensor 'abc'", "this name twice"});
  check_refusal(refusal("{" + a + "," + entry("\\u0061bc", "U8", "1", "1,2") + "}", 2),
                {"tensor 'abc'", "this name twice"});
  check_refusal(refusal(R"({"__metadata__":{},"__metadata__":{}})", 0), {"this name twice"});
}

TEST_CASE("safetensors_header: names have 1 to 512 bytes and are made fit for a log line") {
  check_refusal(refusal("{" + entry("", "U8", "1", "0,1") + "}", 1), {"1 to 512 bytes, found 0"});
  CHECK(refusal("{" + entry(std::string(512, 'n'), "U8", "1", "0,1") + "}", 1) == "accepted");
  const std::string message = refusal("{" + entry(std::string(100000, 'n'), "U8", "1", "0,1") + "}", 1);
  check_refusal(message, {"found 100000"});
  CHECK(message.size() < 400);
  CHECK(says(refusal("{" + entry("a\\nb", "U9", "1", "0,1") + "}", 1), "tensor 'a?b'"));
}

TEST_CASE("safetensors_header: what a failed download leaves is told apart from data") {
  CHECK(says(refusal_of_file("version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"),
             "git-lfs pointer"));
  CHECK(says(refusal_of_file("<!DOCTYPE html><html><body>Sign in</body></html>"), "HTML"));
  CHECK(says(refusal_of_file("\n  <HTML><head>502 Bad Gateway</head></HTML>"), "HTML"));
  CHECK(says(refusal_of_file("<?xml version=\"1.0\"?><Error>AccessDenied</Error>"), "HTML or XML"));
  CHECK(says(refusal_of_file("# xet version 0\nfilesize = 5\n"), "pointer file"));
  CHECK(says(refusal_of_file("{\"error\":\"not found\"}"), "the header is larger than the file"));
}

TEST_CASE("safetensors_header: short files and senseless header sizes are refused") {
  CHECK(says(refusal_of_file(""), "expected at least 8 bytes, found 0"));
  CHECK(says(refusal_of_file("abc"), "expected at least 8 bytes, found 3"));
  CHECK(says(refusal_of_file(std::string("\x09\0\0\0\0\0\0\0{}      ", 16)),
             "its length word says 9 bytes, the file has 16"));
  CHECK(says(refusal_of_file(std::string(16, '\xff')), "the header is larger than the file"));
  CHECK(says(refusal_of_file(std::string(8, '\0')), "not JSON"));
  temp_folder folder;
  const auto path = folder.path() / "huge.safetensors";
  test::write_text(path, std::string("\0\0\0\x20\0\0\0\0{", 9)); // says 512 MiB
  std::filesystem::resize_file(path, uint64_t{1} << 30);         // which the file, all holes, could hold
  CHECK_THROWS_WITH_AS(read_safetensors_header(file(path)),
                       (path.string() + ": a header of 536870912 bytes, expected at most 268435456").c_str(),
                       checkpoint_error);
}
