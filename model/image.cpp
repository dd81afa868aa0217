// Sniffing, limits, EXIF orientation; the decoders themselves are in image_png.cpp and image_jpeg.cpp.
#include "model/image.h"

#include "model/image_codecs.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <utility>

namespace troupe {
namespace image_codecs {

void check_size(const char* format, int64_t width, int64_t height, const image_limits& limits) {
  if (width <= 0 || height <= 0) throw image_error(fmt::format("the {} is {} x {} pixels", format, width, height));
  if (width > limits.max_side || height > limits.max_side)
    throw image_error(
        fmt::format("the {} is {} x {} pixels, a side may have at most {}", format, width, height, limits.max_side));
  if (width > limits.max_pixels / height)
    throw image_error(fmt::format("the {} is {} x {} pixels, at most {} pixels are allowed", format, width, height,
                                  limits.max_pixels));
}

int exif_orientation(std::span<const uint8_t> tiff) {
  if (tiff.size() < 8) return 1;
  const bool little = tiff[0] == 'I' && tiff[1] == 'I';
  if (!little && !(tiff[0] == 'M' && tiff[1] == 'M')) return 1;
  const auto u16 = [&](size_t at) { return little ? tiff[at] | tiff[at + 1] << 8 : tiff[at] << 8 | tiff[at + 1]; };
  const auto u32 = [&](size_t at) {
    const auto first = static_cast<uint32_t>(u16(at)), second = static_cast<uint32_t>(u16(at + 2));
    return little ? first | second << 16 : first << 16 | second;
  };
  if (u16(2) != 42) return 1;
  const size_t directory = u32(4);
  if (directory > tiff.size() - 2) return 1;
  const int n_entries = u16(directory);
  for (int i = 0; i < n_entries; ++i) {
    const size_t entry = directory + 2 + static_cast<size_t>(i) * 12; // tag, type, count, value
    if (entry + 12 > tiff.size()) return 1;
    if (u16(entry) != 0x0112) continue;
    const int type = u16(entry + 2);
    const int64_t value = type == 3 ? u16(entry + 8) : type == 4 ? int64_t{u32(entry + 8)} : 1;
    return value >= 1 && value <= 8 ? static_cast<int>(value) : 1;
  }
  return 1;
}

} // namespace image_codecs

namespace {

bool starts_with(std::span<const std::byte> file, std::string_view magic, size_t at = 0) {
  if (file.size() < at + magic.size()) return false;
  return std::equal(magic.begin(), magic.end(), file.begin() + static_cast<std::ptrdiff_t>(at),
                    [](char c, std::byte b) { return static_cast<std::byte>(c) == b; });
}

// The name of a format we know but do not read, else the first bytes in hexadecimal.
std::string describe(std::span<const std::byte> file) {
  using namespace std::string_view_literals;
  const auto is = [&](std::string_view magic, size_t at = 0) { return starts_with(file, magic, at); };
  const char* found = nullptr;
  if (is("RIFF"sv) && is("WEBP"sv, 8))
    found = "a WebP image";
  else if (is("GIF87a"sv) || is("GIF89a"sv))
    found = "a GIF image";
  else if (is("BM"sv))
    found = "a BMP image";
  else if (is("II*\0"sv) || is("MM\0*"sv))
    found = "a TIFF image";
  else if (is("ftypavif"sv, 4) || is("ftypavis"sv, 4))
    found = "an AVIF image";
  else if (is("ftyphei"sv, 4) || is("ftypmif1"sv, 4))
    found = "a HEIC image";
  else if (is("\0\0\0\x0CJXL "sv) || is("\xFF\x0A"sv))
    found = "a JPEG XL image";
  else if (is("\0\0\0\x0CjP  "sv))
    found = "a JPEG 2000 image";
  else if (is("%PDF"sv))
    found = "a PDF document";
  else if (is("<"sv))
    found = "markup such as SVG or HTML";
  if (found != nullptr) return found;
  std::string text = "unknown data beginning";
  for (const std::byte b : file.first(std::min<size_t>(file.size(), 8)))
    text += fmt::format(" {:02X}", std::to_integer<int>(b));
  return text;
}

// EXIF orientation 1..8: 2 mirrors left-right, 3 turns by 180, 4 mirrors top-bottom, 5 transposes, 6 turns 90
// clockwise, 7 transposes across the other diagonal, 8 turns 90 counter-clockwise.
rgb_image turn_upright(rgb_image in, int orientation) {
  if (orientation <= 1 || orientation > 8) return in;
  const bool swap_sides = orientation >= 5;
  rgb_image out{.width = swap_sides ? in.height : in.width, .height = swap_sides ? in.width : in.height, .rgb = {}};
  out.rgb.resize(in.rgb.size());
  const bool from_right = orientation == 2 || orientation == 3 || orientation == 7 || orientation == 8;
  const bool from_bottom = orientation == 3 || orientation == 4 || orientation == 6 || orientation == 7;
  uint8_t* to = out.rgb.data();
  for (int64_t y = 0; y < out.height; ++y)
    for (int64_t x = 0; x < out.width; ++x, to += 3) {
      const int64_t u = swap_sides ? y : x, v = swap_sides ? x : y;
      const int64_t column = from_right ? in.width - 1 - u : u, row = from_bottom ? in.height - 1 - v : v;
      std::copy_n(in.rgb.data() + (row * in.width + column) * 3, 3, to);
    }
  return out;
}

} // namespace

rgb_image decode_image(std::span<const std::byte> file, const image_limits& limits) {
  using namespace std::string_view_literals;
  if (file.empty()) throw image_error("the data is empty");
  image_codecs::oriented_image read;
  if (starts_with(file, "\x89PNG\r\n\x1A\n"sv))
    read = image_codecs::decode_png(file, limits);
  else if (starts_with(file, "\xFF\xD8\xFF"sv))
    read = image_codecs::decode_jpeg(file, limits);
  else
    throw image_error("expected a PNG or JPEG, found " + describe(file));
  return turn_upright(std::move(read.image), read.orientation);
}

} // namespace troupe
