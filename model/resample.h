// Resizing of 8-bit RGB with antialiased bicubic interpolation, bit-compatible with PIL (Image.resize, ImageOps.pad):
// the vision tower was trained on what PIL makes. Spec: vision.md section 1.
#pragma once

#include "model/image.h"

#include <array>

namespace troupe {

// PIL's Image.resize(BICUBIC). Preconditions: all sides > 0, in.rgb holds height * width * 3 bytes.
rgb_image resize_bicubic(const rgb_image& in, int32_t width, int32_t height);

// PIL's ImageOps.pad: scales `in` to fit inside (width, height), keeping its shape, and centres it on `colour`. Where
// PIL refuses because a side would round to 0, the side is 1.
rgb_image pad_bicubic(const rgb_image& in, int32_t width, int32_t height, std::array<uint8_t, 3> colour);

} // namespace troupe
