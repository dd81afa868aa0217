// libFuzzer target: no bytes make decode_image crash, leak, or throw anything but image_error; what it returns is
// whole.
#include "model/image.h"

#include <cstdint>
#include <cstdlib>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    const troupe::rgb_image image =
        troupe::decode_image(std::as_bytes(std::span(data, size)), {.max_pixels = 1 << 20, .max_side = 1 << 16});
    if (image.width <= 0 || image.height <= 0) std::abort();
    if (image.rgb.size() != static_cast<size_t>(image.width) * static_cast<size_t>(image.height) * 3) std::abort();
  } catch (const troupe::image_error&) {}
  return 0;
}
