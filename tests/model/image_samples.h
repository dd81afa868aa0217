// Makes PNG and JPEG files of known pixels for the image tests.
#pragma once

#include <png.h>

#include <cstdio> // jpeglib.h needs it
#include <cstring>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include <jpeglib.h>

namespace image_samples {

inline std::span<const std::byte> bytes_of(const std::string& s) {
  return std::as_bytes(std::span(s.data(), s.size()));
}

struct png_sample {
  uint32_t width = 0, height = 0;
  int depth = 8, type = PNG_COLOR_TYPE_RGB;
  std::string pixels; // rows as PNG stores them, packed
  bool interlaced = false;
  std::vector<png_color> palette = {};
  std::string palette_alpha = {};             // tRNS of a palette
  std::vector<png_color_16> transparent = {}; // tRNS of grey or RGB: none or one
  std::string exif = {};
};

inline std::string write_png(const png_sample& s) {
  std::string out;
  png_structp png = png_create_write_struct(PNG_LIBPNG_VER_STRING, nullptr, nullptr, nullptr);
  png_infop info = png_create_info_struct(png);
  png_set_write_fn(
      png, &out,
      [](png_structp p, png_bytep data, size_t n) {
        static_cast<std::string*>(png_get_io_ptr(p))->append(reinterpret_cast<char*>(data), n);
      },
      nullptr);
  png_set_IHDR(png, info, s.width, s.height, s.depth, s.type, s.interlaced ? PNG_INTERLACE_ADAM7 : PNG_INTERLACE_NONE,
               PNG_COMPRESSION_TYPE_DEFAULT, PNG_FILTER_TYPE_DEFAULT);
  if (!s.palette.empty()) png_set_PLTE(png, info, s.palette.data(), static_cast<int>(s.palette.size()));
  if (!s.palette_alpha.empty())
    png_set_tRNS(png, info, reinterpret_cast<png_const_bytep>(s.palette_alpha.data()),
                 static_cast<int>(s.palette_alpha.size()), nullptr);
  if (!s.transparent.empty()) png_set_tRNS(png, info, nullptr, 0, s.transparent.data());
  std::string exif = s.exif;
  if (!exif.empty())
    png_set_eXIf_1(png, info, static_cast<png_uint_32>(exif.size()), reinterpret_cast<png_bytep>(exif.data()));
  png_write_info(png, info);
  std::string pixels = s.pixels;
  std::vector<png_bytep> rows;
  for (uint32_t y = 0; y < s.height; ++y)
    rows.push_back(reinterpret_cast<png_bytep>(pixels.data()) + y * (pixels.size() / s.height));
  png_write_image(png, rows.data());
  png_write_end(png, nullptr);
  png_destroy_write_struct(&png, &info);
  return out;
}

struct jpeg_sample {
  unsigned width = 0, height = 0;
  int n_channels = 3;
  J_COLOR_SPACE in = JCS_RGB, stored = JCS_YCbCr;
  std::string pixels;
  bool progressive = false;
  std::string exif = {}; // the TIFF block
};

inline std::string write_jpeg(const jpeg_sample& s) {
  jpeg_compress_struct jpeg{};
  jpeg_error_mgr errors{};
  jpeg.err = jpeg_std_error(&errors);
  jpeg_create_compress(&jpeg);
  unsigned char* data = nullptr;
  unsigned long size = 0;
  jpeg_mem_dest(&jpeg, &data, &size);
  jpeg.image_width = s.width;
  jpeg.image_height = s.height;
  jpeg.input_components = s.n_channels;
  jpeg.in_color_space = s.in;
  jpeg_set_defaults(&jpeg);
  jpeg_set_colorspace(&jpeg, s.stored);
  jpeg_set_quality(&jpeg, 100, TRUE);
  jpeg.comp_info[0].h_samp_factor = jpeg.comp_info[0].v_samp_factor =
      1; // no subsampling: pixels come back nearly equal
  if (s.progressive) jpeg_simple_progression(&jpeg);
  jpeg_start_compress(&jpeg, TRUE);
  if (!s.exif.empty()) {
    const std::string block = std::string("Exif\0\0", 6) + s.exif;
    jpeg_write_marker(&jpeg, JPEG_APP0 + 1, reinterpret_cast<const JOCTET*>(block.data()),
                      static_cast<unsigned>(block.size()));
  }
  std::string pixels = s.pixels;
  for (unsigned y = 0; y < s.height; ++y) {
    auto* row = reinterpret_cast<JSAMPROW>(pixels.data()) + size_t{y} * s.width * static_cast<size_t>(s.n_channels);
    jpeg_write_scanlines(&jpeg, &row, 1);
  }
  jpeg_finish_compress(&jpeg);
  jpeg_destroy_compress(&jpeg);
  std::string out(reinterpret_cast<char*>(data), size);
  free(data);
  return out;
}

// A TIFF block whose first directory holds the orientation only.
inline std::string exif_block(int orientation, bool little_endian) {
  const auto n16 = [&](int v) {
    const char low = static_cast<char>(v & 255), high = static_cast<char>(v >> 8);
    return little_endian ? std::string{low, high} : std::string{high, low};
  };
  const auto n32 = [&](int v) { return little_endian ? n16(v) + n16(0) : n16(0) + n16(v); };
  return std::string(little_endian ? "II" : "MM") + n16(42) + n32(8) + n16(1) + n16(0x0112) + n16(3) + n32(1) +
         n16(orientation) + n16(0) + n32(0);
}

} // namespace image_samples
