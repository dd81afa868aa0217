// The two decoders behind decode_image, and what they share. Not for other files.
#pragma once

#include "model/image.h"

namespace troupe::image_codecs {

// Upright pixels come from `image` by the EXIF `orientation` (1..8; all else counts as 1).
struct oriented_image {
  rgb_image image;
  int orientation = 1;
};

oriented_image decode_png(std::span<const std::byte> file, const image_limits&);
oriented_image decode_jpeg(std::span<const std::byte> file, const image_limits&);

// Throws image_error when a side is zero or the limits are exceeded.
void check_size(const char* format, int64_t width, int64_t height, const image_limits&);

// The orientation tag of a TIFF block (what follows "Exif\0\0" in a JPEG, an eXIf chunk of a PNG); 1 when it has none
// or makes no sense.
int exif_orientation(std::span<const uint8_t> tiff);

} // namespace troupe::image_codecs
