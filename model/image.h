// Image bytes of a client -> RGB. PNG and JPEG; the type is sniffed from the bytes, whatever the client declared.
// Spec: api.md 2.8.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

namespace troupe {

struct rgb_image {
  int32_t width = 0, height = 0; // pixels, both > 0 after decode_image
  std::vector<uint8_t> rgb;      // (height, width, 3) row-major
};

// What a client sent is not an image we can read. what() is for the client and begins "Failed to load image: ".
struct image_error : std::runtime_error {
  explicit image_error(const std::string& why) : std::runtime_error("Failed to load image: " + why) {}
};

struct image_limits {
  int64_t max_pixels = 100'000'000; // checked from the header, before any pixel is decoded
  int64_t max_side = 1'000'000;     // of a PNG; a JPEG has at most 65535
};

// Decodes a whole file. Alpha is flattened on white, 16 bits become the high 8, grey, palette, CMYK and YCCK become
// RGB, the EXIF orientation is applied, of an animated PNG the default image is taken. Colour profiles and gamma are
// ignored, as PIL does. Throws image_error: another format (named), empty, truncated or damaged data, more than
// `max_pixels`.
rgb_image decode_image(std::span<const std::byte> file, const image_limits& = {});

} // namespace troupe
