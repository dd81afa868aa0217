// Image decoding: every kind of PNG and JPEG gives the right RGB; what is no image is refused by name. Spec:
// api.md 2.8.
#include "model/image.h"

#include "tests/model/image_samples.h"

#include <doctest/doctest.h>
#include <zlib.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>

using namespace troupe;
using namespace image_samples;
using namespace std::string_literals;

namespace {

rgb_image decode(const std::string& file, const image_limits& limits = {}) {
  return decode_image(bytes_of(file), limits);
}

std::string image_refusal(const std::string& file, const image_limits& limits = {}) {
  try {
    decode(file, limits);
  } catch (const image_error& e) { return e.what(); }
  return "accepted";
}

std::string text_of(const rgb_image& image) { return {image.rgb.begin(), image.rgb.end()}; }

bool starts_with(const std::string& s, const std::string& head) { return s.rfind(head, 0) == 0; }

int largest_difference(const rgb_image& image, const std::string& rgb) {
  REQUIRE(image.rgb.size() == rgb.size());
  int most = 0;
  for (size_t i = 0; i < rgb.size(); ++i) most = std::max(most, std::abs(image.rgb[i] - static_cast<uint8_t>(rgb[i])));
  return most;
}

// A smooth picture, which JPEG keeps nearly unchanged.
std::string gradient(int width, int height) {
  std::string rgb;
  for (int y = 0; y < height; ++y)
    for (int x = 0; x < width; ++x)
      for (const int v : {x * 200 / width + 20, y * 200 / height + 20, (x + y) * 100 / (width + height) + 60})
        rgb += static_cast<char>(v);
  return rgb;
}

} // namespace

TEST_CASE("image: an RGB PNG comes back byte for byte, interlaced or not") {
  const std::string rgb = gradient(13, 9);
  for (const bool interlaced : {false, true}) {
    const rgb_image image = decode(write_png({.width = 13, .height = 9, .pixels = rgb, .interlaced = interlaced}));
    CHECK(image.width == 13);
    CHECK(image.height == 9);
    CHECK(text_of(image) == rgb);
  }
}

TEST_CASE("image: grey PNGs of every depth scale to 0..255") {
  const auto grey = [](int depth, const std::string& row, uint32_t width) {
    return text_of(
        decode(write_png({.width = width, .height = 1, .depth = depth, .type = PNG_COLOR_TYPE_GRAY, .pixels = row})));
  };
  CHECK(grey(1, "\x80"s, 2) == "\xFF\xFF\xFF\0\0\0"s);
  CHECK(grey(2, "\x1B"s, 4) == "\0\0\0\x55\x55\x55\xAA\xAA\xAA\xFF\xFF\xFF"s);
  CHECK(grey(4, "\x3F"s, 2) == "\x33\x33\x33\xFF\xFF\xFF"s);
  CHECK(grey(8, "\x07\x90"s, 2) == "\x07\x07\x07\x90\x90\x90"s);
  CHECK(grey(16, "\x12\xFF"s, 1) == "\x12\x12\x12"s); // the high byte, as PIL takes it
}

TEST_CASE("image: 16-bit RGB and RGBA keep the high byte") {
  const auto read = [](int type, const std::string& pixels) {
    return text_of(decode(write_png({.width = 1, .height = 1, .depth = 16, .type = type, .pixels = pixels})));
  };
  CHECK(read(PNG_COLOR_TYPE_RGB, "\x01\xFF\x02\xFF\x03\0"s) == "\x01\x02\x03"s);
  CHECK(read(PNG_COLOR_TYPE_RGBA, "\x01\xFF\x02\xFF\x03\0\xFF\xFF"s) == "\x01\x02\x03"s);
}

TEST_CASE("image: alpha is flattened on white with correct rounding") {
  const auto rgba = [](const std::string& pixel) {
    return text_of(decode(write_png({.width = 1, .height = 1, .type = PNG_COLOR_TYPE_RGBA, .pixels = pixel})));
  };
  CHECK(rgba("\x0A\x14\x1E\0"s) == "\xFF\xFF\xFF"s);
  CHECK(rgba("\x0A\x14\x1E\xFF"s) == "\x0A\x14\x1E"s);
  CHECK(rgba("\0\xFF\x80\x80"s) == "\x7F\xFF\xBF"s); // 127; 255; 128 * 128 / 255 + 127 = 191.25
  const std::string grey = text_of(
      decode(write_png({.width = 2, .height = 1, .type = PNG_COLOR_TYPE_GRAY_ALPHA, .pixels = "\x40\xFF\x40\0"s})));
  CHECK(grey == "\x40\x40\x40\xFF\xFF\xFF"s);
}

TEST_CASE("image: palettes of every depth, with and without transparency") {
  const std::vector<png_color> palette = {{1, 2, 3}, {40, 50, 60}, {200, 210, 220}};
  png_sample s{
      .width = 3, .height = 1, .depth = 2, .type = PNG_COLOR_TYPE_PALETTE, .pixels = "\x18"s, .palette = palette};
  CHECK(text_of(decode(write_png(s))) == "\x01\x02\x03\x28\x32\x3C\xC8\xD2\xDC"s); // indices 0 1 2
  s.palette_alpha = "\xFF\0"s;                                                     // the second colour is clear
  CHECK(text_of(decode(write_png(s))) == "\x01\x02\x03\xFF\xFF\xFF\xC8\xD2\xDC"s);
  s.palette_alpha.clear();
  s.depth = 8;
  s.pixels = "\x02\0\x01"s;
  CHECK(text_of(decode(write_png(s))) == "\xC8\xD2\xDC\x01\x02\x03\x28\x32\x3C"s);
}

TEST_CASE("image: the transparent colour of a grey or RGB PNG becomes white") {
  png_color_16 clear{};
  clear.gray = 5;
  CHECK(text_of(decode(write_png(
            {.width = 2, .height = 1, .type = PNG_COLOR_TYPE_GRAY, .pixels = "\x05\x06"s, .transparent = {clear}}))) ==
        "\xFF\xFF\xFF\x06\x06\x06"s);
  clear.red = 1, clear.green = 2, clear.blue = 3;
  CHECK(text_of(decode(
            write_png({.width = 2, .height = 1, .pixels = "\x01\x02\x03\x01\x02\x04"s, .transparent = {clear}}))) ==
        "\xFF\xFF\xFF\x01\x02\x04"s);
}

TEST_CASE("image: RGB JPEGs, baseline and progressive, are within rounding") {
  const std::string rgb = gradient(40, 24);
  for (const bool progressive : {false, true}) {
    const rgb_image image = decode(write_jpeg({.width = 40, .height = 24, .pixels = rgb, .progressive = progressive}));
    CHECK(image.width == 40);
    CHECK(image.height == 24);
    CHECK(largest_difference(image, rgb) <= 4);
  }
}

TEST_CASE("image: grey, CMYK and YCCK JPEGs become RGB") {
  const rgb_image grey = decode(write_jpeg({.width = 16,
                                            .height = 16,
                                            .n_channels = 1,
                                            .in = JCS_GRAYSCALE,
                                            .stored = JCS_GRAYSCALE,
                                            .pixels = std::string(256, '\x64')}));
  CHECK(largest_difference(grey, std::string(256 * 3, '\x64')) <= 1);
  std::string inks, expected; // stored inverted: 255 is no ink
  for (int i = 0; i < 256; ++i) inks += "\xFF\x80\x40\x80"s, expected += "\x80\x40\x20"s;
  for (const J_COLOR_SPACE stored : {JCS_CMYK, JCS_YCCK}) {
    const rgb_image image = decode(
        write_jpeg({.width = 16, .height = 16, .n_channels = 4, .in = JCS_CMYK, .stored = stored, .pixels = inks}));
    CHECK(largest_difference(image, expected) <= 3);
  }
}

TEST_CASE("image: the EXIF orientation is applied, in both byte orders, to JPEG and PNG") {
  // Six grey values in 3 x 2: 0 1 2 / 3 4 5, and how they must lie when upright.
  const std::array<std::string, 9> upright = {"012345", "012345", "210543", "543210", "345012",
                                              "031425", "304152", "524130", "251403"};
  for (int orientation = 0; orientation <= 8; ++orientation)
    for (const bool little : {false, true}) {
      CAPTURE(orientation);
      std::string small, large; // a JPEG needs 8 x 8 blocks of a value to keep it
      for (int i = 0; i < 6; ++i) small += std::string(3, static_cast<char>(i * 40));
      for (int y = 0; y < 16; ++y)
        for (int x = 0; x < 24; ++x) large += std::string(3, static_cast<char>((y / 8 * 3 + x / 8) * 40));
      const std::string exif = exif_block(orientation, little);
      const rgb_image png = decode(write_png({.width = 3, .height = 2, .pixels = small, .exif = exif}));
      const rgb_image jpeg = decode(write_jpeg({.width = 24, .height = 16, .pixels = large, .exif = exif}));
      const int width = orientation >= 5 ? 2 : 3, height = 5 - width;
      REQUIRE(png.width == width);
      REQUIRE(png.height == height);
      REQUIRE(jpeg.width == width * 8);
      REQUIRE(jpeg.height == height * 8);
      std::string png_digits, jpeg_digits;
      for (int y = 0; y < height; ++y)
        for (int x = 0; x < width; ++x) {
          png_digits += static_cast<char>('0' + png.rgb[static_cast<size_t>(y * width + x) * 3] / 40);
          const int at = (y * 8 + 4) * jpeg.width + x * 8 + 4;
          jpeg_digits += static_cast<char>('0' + (jpeg.rgb[static_cast<size_t>(at) * 3] + 20) / 40);
        }
      CHECK(png_digits == upright[static_cast<size_t>(orientation)]);
      CHECK(jpeg_digits == upright[static_cast<size_t>(orientation)]);
    }
}

TEST_CASE("image: broken EXIF counts as upright") {
  for (const std::string& exif : {"II"s, "II*\0\xFF\xFF\xFF\xFF"s, "II*\0\x08\0\0\0\xFF\xFF\x12\x01"s,
                                  exif_block(9, true), "XX*\0\x08\0\0\0"s, "MM\0*\0\0\0\x08\0\x01"s}) {
    const rgb_image image = decode(write_jpeg({.width = 16, .height = 8, .pixels = gradient(16, 8), .exif = exif}));
    CHECK(image.width == 16);
  }
}

TEST_CASE("image: other formats and garbage are refused by what they are") {
  const std::string head = "Failed to load image: expected a PNG or JPEG, found ";
  CHECK(image_refusal("") == "Failed to load image: the data is empty");
  CHECK(image_refusal("RIFF\x10\0\0\0WEBPVP8 "s) == head + "a WebP image");
  CHECK(image_refusal("GIF89a\x01\0\x01\0"s) == head + "a GIF image");
  CHECK(image_refusal("BM\x46\0\0\0"s) == head + "a BMP image");
  CHECK(image_refusal("II*\0\x08\0\0\0"s) == head + "a TIFF image");
  CHECK(image_refusal("\0\0\0\x20"
                      "ftypavif"s) == head + "an AVIF image");
  CHECK(image_refusal("<svg xmlns=''/>") == head + "markup such as SVG or HTML");
  CHECK(image_refusal("\x01\x02"s) == head + "unknown data beginning 01 02");
  CHECK(image_refusal("hello, world") == head + "unknown data beginning 68 65 6C 6C 6F 2C 20 77");
}

TEST_CASE("image: a file cut anywhere is refused, never read past its end") {
  const std::string png = write_png({.width = 13, .height = 9, .pixels = gradient(13, 9)});
  const std::string jpeg = write_jpeg({.width = 40, .height = 24, .pixels = gradient(40, 24)});
  const std::string waves = write_jpeg({.width = 40, .height = 24, .pixels = gradient(40, 24), .progressive = true});
  for (const std::string* file : {&png, &jpeg, &waves})
    for (size_t n = 0; n < file->size(); ++n) {
      // On the heap and exactly as long, so that a sanitizer sees a read past the end.
      const std::string message = image_refusal(std::string(file->data(), n));
      if (!starts_with(message, "Failed to load image: ")) FAIL(n, " of ", file->size(), " bytes: ", message);
    }
  CHECK(image_refusal(jpeg.substr(0, jpeg.size() / 2)) ==
        "Failed to load image: the JPEG is damaged: the file ends early");
  CHECK(image_refusal(png.substr(0, png.size() / 2)) ==
        "Failed to load image: the PNG is damaged: the file ends early");
}

TEST_CASE("image: damaged bytes are refused or read, and nothing worse") {
  std::mt19937 random(7);
  const std::string rgb = gradient(24, 16);
  const std::vector<std::string> files = {
      write_png({.width = 24, .height = 16, .pixels = rgb, .interlaced = true}),
      write_jpeg({.width = 24, .height = 16, .pixels = rgb, .exif = exif_block(6, true)}),
      write_jpeg({.width = 24, .height = 16, .pixels = rgb, .progressive = true})};
  int n_refused = 0;
  for (int round = 0; round < 3000; ++round) {
    std::string file = files[static_cast<size_t>(round) % files.size()];
    for (int k = 0; k < 3; ++k) file[random() % file.size()] = static_cast<char>(random());
    n_refused += starts_with(image_refusal(file, {.max_pixels = 100'000}), "Failed to load image: ");
  }
  CHECK(n_refused > 1000);
}

TEST_CASE("image: too many pixels are refused from the header alone") {
  // The pixel data are missing, so only a check that comes before decoding can give this message.
  std::string png = write_png({.width = 1, .height = 1, .pixels = "abc"});
  const auto set_size = [&](uint32_t width, uint32_t height) {
    for (int i = 0; i < 4; ++i) {
      png[static_cast<size_t>(16 + i)] = static_cast<char>(width >> (24 - 8 * i));
      png[static_cast<size_t>(20 + i)] = static_cast<char>(height >> (24 - 8 * i));
    }
    const uLong crc = crc32(0, reinterpret_cast<const Bytef*>(png.data()) + 12, 17);
    for (int i = 0; i < 4; ++i) png[static_cast<size_t>(29 + i)] = static_cast<char>(crc >> (24 - 8 * i));
    return png;
  };
  CHECK(image_refusal(set_size(20000, 20000)) ==
        "Failed to load image: the PNG is 20000 x 20000 pixels, at most 100000000 pixels are allowed");
  CHECK(image_refusal(set_size(0, 5)) == "Failed to load image: the PNG is 0 x 5 pixels");
  CHECK(image_refusal(set_size(2'000'000, 1)) ==
        "Failed to load image: the PNG is 2000000 x 1 pixels, a side may have at most 1000000");
  CHECK(image_refusal(set_size(0xFFFFFFFF, 0xFFFFFFFF)).find("a side may have at most") != std::string::npos);
  // Within the limit, but more than so few bytes can hold.
  CHECK(image_refusal(set_size(9000, 9000)).find("bytes cannot hold 9000 x 9000 pixels") != std::string::npos);
  const std::string jpeg = write_jpeg({.width = 40, .height = 24, .pixels = gradient(40, 24)});
  CHECK(image_refusal(jpeg, {.max_pixels = 959}) ==
        "Failed to load image: the JPEG is 40 x 24 pixels, at most 959 pixels are allowed");
  CHECK(decode(jpeg, {.max_pixels = 960}).width == 40);
}

TEST_CASE("image: the tiny model's evaluation images decode") {
  int n = 0;
  for (const auto& entry : std::filesystem::directory_iterator(TROUPE_SOURCE_DIR "/tests/golden/tiny/images")) {
    std::ifstream in(entry.path(), std::ios::binary);
    const rgb_image image = decode(std::string(std::istreambuf_iterator<char>(in), {}));
    CHECK(image.rgb.size() == static_cast<size_t>(image.width) * static_cast<size_t>(image.height) * 3);
    ++n;
  }
  CHECK(n > 20);
}

TEST_CASE("image: every file of the fuzz corpus is read or refused") {
  int n_read = 0, n_refused = 0;
  for (const auto& entry : std::filesystem::directory_iterator(TROUPE_SOURCE_DIR "/tests/fuzz/corpus/image")) {
    std::ifstream in(entry.path(), std::ios::binary);
    const std::string message =
        image_refusal(std::string(std::istreambuf_iterator<char>(in), {}), {.max_pixels = 1 << 20});
    CAPTURE(entry.path());
    CHECK((message == "accepted" || starts_with(message, "Failed to load image: ")));
    ++(message == "accepted" ? n_read : n_refused);
  }
  MESSAGE("fuzz corpus: ", n_read, " read, ", n_refused, " refused");
  CHECK(n_read > 10);
}
