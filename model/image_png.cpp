// PNG through libpng. libpng reports errors by longjmp: each function that calls setjmp has only plain locals and calls
// nothing of C++ that could own memory, so a jump skips no destructor; buffers belong to the callers of those
// functions.
#include "model/image_codecs.h"

#include <fmt/format.h>
#include <png.h>

#include <algorithm>
#include <csetjmp>
#include <cstdio>
#include <cstring>
#include <new>

namespace troupe::image_codecs {
namespace {

struct png_reader {
  std::span<const std::byte> left; // not yet handed to libpng
  png_structp png = nullptr;
  png_infop info = nullptr;
  char why[160] = "";
  // After read_header:
  size_t row_bytes = 0;
  int n_channels = 0, n_passes = 1, orientation = 1;
  uint64_t raw_bytes = 0; // of one row as stored, before any conversion

  png_reader() = default;
  png_reader(const png_reader&) = delete;
  ~png_reader() { png_destroy_read_struct(&png, &info, nullptr); }
};

[[noreturn]] void on_error(png_structp png, png_const_charp message) {
  auto* r = static_cast<png_reader*>(png_get_error_ptr(png));
  std::snprintf(r->why, sizeof r->why, "%s", message);
  png_longjmp(png, 1);
}

void on_warning(png_structp, png_const_charp) {}

void on_read(png_structp png, png_bytep to, size_t n) {
  auto* r = static_cast<png_reader*>(png_get_io_ptr(png));
  if (r->left.size() < n) png_error(png, "the file ends early");
  std::memcpy(to, r->left.data(), n);
  r->left = r->left.subspan(n);
}

// Reads up to the first IDAT and asks for 8-bit RGB or RGBA. False: r.why.
bool read_header(png_reader& r) {
  if (setjmp(png_jmpbuf(r.png)) != 0) return false;
  // Compressed side chunks are never needed; skipped, they cannot be used to burn time or memory.
  static constexpr png_byte skipped[] = "iCCP\0zTXt\0iTXt\0tEXt\0sPLT";
  png_set_keep_unknown_chunks(r.png, PNG_HANDLE_CHUNK_NEVER, skipped, 5);
  png_set_read_fn(r.png, &r, on_read);
  png_read_info(r.png, r.info);
  r.raw_bytes = png_get_rowbytes(r.png, r.info);
  png_uint_32 n_exif = 0;
  png_bytep exif = nullptr;
  if (png_get_eXIf_1(r.png, r.info, &n_exif, &exif) != 0) r.orientation = exif_orientation({exif, n_exif});
  png_set_expand(r.png); // palette -> RGB, 1..4 bits -> 8, tRNS -> alpha
  png_set_strip_16(r.png);
  png_set_gray_to_rgb(r.png);
  r.n_passes = png_set_interlace_handling(r.png);
  png_read_update_info(r.png, r.info);
  r.row_bytes = png_get_rowbytes(r.png, r.info);
  r.n_channels = png_get_channels(r.png, r.info);
  return true;
}

// Reads all rows into `to` (height, row_bytes), then the chunks after them. False: r.why.
bool read_rows(png_reader& r, uint8_t* to, int64_t height) {
  if (setjmp(png_jmpbuf(r.png)) != 0) return false;
  for (int pass = 0; pass < r.n_passes; ++pass)
    for (int64_t y = 0; y < height; ++y) png_read_row(r.png, to + static_cast<size_t>(y) * r.row_bytes, nullptr);
  png_read_end(r.png, nullptr);
  return true;
}

// RGBA -> RGB in place: each output triple lies at or before its input.
void flatten_on_white(std::vector<uint8_t>& pixels) {
  const size_t n = pixels.size() / 4;
  for (size_t i = 0; i < n; ++i) {
    const unsigned alpha = pixels[i * 4 + 3];
    for (size_t c = 0; c < 3; ++c) // 255 is odd, so the quotient is never half-way: + 127 rounds to nearest
      pixels[i * 3 + c] = static_cast<uint8_t>((pixels[i * 4 + c] * alpha + 255 * (255 - alpha) + 127) / 255);
  }
  pixels.resize(n * 3);
}

int64_t u32_at(std::span<const std::byte> file, size_t at) {
  uint32_t value = 0;
  for (size_t i = 0; i < 4; ++i) value = value << 8 | std::to_integer<uint32_t>(file[at + i]);
  return value;
}

} // namespace

oriented_image decode_png(std::span<const std::byte> file, const image_limits& limits) {
  if (file.size() < 33) throw image_error("the PNG is damaged: the file ends early");
  if (std::memcmp(file.data() + 12, "IHDR", 4) != 0)
    throw image_error("the PNG is damaged: its first chunk is not IHDR");
  const int64_t width = u32_at(file, 16), height = u32_at(file, 20);
  check_size("PNG", width, height, limits);

  png_reader r;
  r.left = file;
  r.png = png_create_read_struct(PNG_LIBPNG_VER_STRING, &r, on_error, on_warning);
  if (r.png == nullptr) throw std::bad_alloc();
  r.info = png_create_info_struct(r.png);
  if (r.info == nullptr) throw std::bad_alloc();
  if (!read_header(r)) throw image_error(fmt::format("the PNG is damaged: {}", r.why));
  // Deflate yields at most 1032 bytes for one, so a short file that claims more is refused before memory is taken.
  if (r.raw_bytes * static_cast<uint64_t>(height) / 1032 > file.size())
    throw image_error(
        fmt::format("the PNG is damaged: {} bytes cannot hold {} x {} pixels", file.size(), width, height));

  oriented_image out{.image = {.width = static_cast<int32_t>(width), .height = static_cast<int32_t>(height), .rgb = {}},
                     .orientation = r.orientation};
  out.image.rgb.resize(r.row_bytes * static_cast<size_t>(height));
  if (!read_rows(r, out.image.rgb.data(), height)) throw image_error(fmt::format("the PNG is damaged: {}", r.why));
  if (r.n_channels == 4) flatten_on_white(out.image.rgb);
  return out;
}

} // namespace troupe::image_codecs
