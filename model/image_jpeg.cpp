// JPEG through libjpeg-turbo. It reports errors by longjmp: each function that calls setjmp has only plain locals and
// calls nothing of C++ that could own memory, so a jump skips no destructor.
#include "model/image_codecs.h"

#include <fmt/format.h>

#include <algorithm>
#include <csetjmp>
#include <cstdio> // jpeglib.h needs it
#include <cstring>

#include <jerror.h>
#include <jpeglib.h>

namespace troupe::image_codecs {
namespace {

// A progressive file may repeat scans at no cost to its sender, each of which costs us a pass over all coefficients.
// Encoders write about ten.
constexpr int max_scans = 100;

struct jpeg_reader {
  jpeg_decompress_struct jpeg{};
  jpeg_error_mgr errors{};
  jpeg_progress_mgr progress{};
  std::jmp_buf jump;
  char why[JMSG_LENGTH_MAX + 1] = "";
  bool is_cmyk = false;
  int orientation = 1;

  jpeg_reader() = default;
  jpeg_reader(const jpeg_reader&) = delete;
  ~jpeg_reader() { jpeg_destroy_decompress(&jpeg); } // safe on a zeroed struct too
};

[[noreturn]] void fail(jpeg_reader& r, const char* why) {
  std::snprintf(r.why, sizeof r.why, "%s", why);
  std::longjmp(r.jump, 1);
}

[[noreturn]] void on_error(j_common_ptr jpeg) {
  auto& r = *static_cast<jpeg_reader*>(jpeg->client_data);
  char text[JMSG_LENGTH_MAX];
  jpeg->err->format_message(jpeg, text);
  fail(r, text);
}

void on_message(j_common_ptr jpeg, int level) {
  // Small faults inside the data are read over, as viewers do; a file that was cut off is not.
  if (level < 0 && jpeg->err->msg_code == JWRN_JPEG_EOF)
    fail(*static_cast<jpeg_reader*>(jpeg->client_data), "the file ends early");
}

void on_output(j_common_ptr) {}

void on_progress(j_common_ptr jpeg) {
  if (reinterpret_cast<j_decompress_ptr>(jpeg)->input_scan_number > max_scans)
    fail(*static_cast<jpeg_reader*>(jpeg->client_data), "too many scans");
}

void find_orientation(jpeg_reader& r) {
  for (jpeg_saved_marker_ptr m = r.jpeg.marker_list; m != nullptr; m = m->next)
    if (m->marker == JPEG_APP0 + 1 && m->data_length > 6 && std::memcmp(m->data, "Exif\0\0", 6) == 0) {
      r.orientation = exif_orientation({m->data + 6, m->data_length - 6});
      return;
    }
}

// False: r.why.
bool read_header(jpeg_reader& r, std::span<const std::byte> file) {
  r.jpeg.err = jpeg_std_error(&r.errors);
  r.errors.error_exit = on_error;
  r.errors.emit_message = on_message;
  r.errors.output_message = on_output;
  r.jpeg.client_data = &r;
  if (setjmp(r.jump) != 0) return false;
  jpeg_create_decompress(&r.jpeg); // keeps err and client_data
  r.progress.progress_monitor = on_progress;
  r.jpeg.progress = &r.progress;
  jpeg_mem_src(&r.jpeg, reinterpret_cast<const unsigned char*>(file.data()), static_cast<unsigned long>(file.size()));
  jpeg_save_markers(&r.jpeg, JPEG_APP0 + 1, 0xFFFF);
  jpeg_read_header(&r.jpeg, TRUE);
  find_orientation(r);
  r.is_cmyk = r.jpeg.jpeg_color_space == JCS_CMYK || r.jpeg.jpeg_color_space == JCS_YCCK;
  if (r.jpeg.jpeg_color_space == JCS_UNKNOWN) fail(r, "its colour components are neither grey, RGB nor CMYK");
  r.jpeg.out_color_space = r.is_cmyk ? JCS_CMYK : JCS_RGB;
  return true;
}

bool start(jpeg_reader& r) {
  if (setjmp(r.jump) != 0) return false;
  jpeg_start_decompress(&r.jpeg);
  return true;
}

bool read_row(jpeg_reader& r, uint8_t* to) {
  if (setjmp(r.jump) != 0) return false;
  JSAMPROW row = to;
  jpeg_read_scanlines(&r.jpeg, &row, 1); // the whole file is in memory, so a row always comes
  return true;
}

// What follows the pixels must not matter to the client, but the end of a cut-off file must.
bool finish(jpeg_reader& r) {
  if (setjmp(r.jump) != 0) return false;
  jpeg_finish_decompress(&r.jpeg);
  return true;
}

// Inks are stored inverted (255: none), the convention of Adobe that all writers of CMYK files follow.
void cmyk_to_rgb(const std::vector<uint8_t>& cmyk, uint8_t* rgb) {
  for (size_t i = 0; i + 4 <= cmyk.size(); i += 4, rgb += 3)
    for (size_t c = 0; c < 3; ++c) rgb[c] = static_cast<uint8_t>((cmyk[i + c] * cmyk[i + 3] + 127) / 255);
}

} // namespace

oriented_image decode_jpeg(std::span<const std::byte> file, const image_limits& limits) {
  jpeg_reader r;
  const auto check = [&r](bool ok) {
    if (!ok) throw image_error(fmt::format("the JPEG is damaged: {}", r.why));
  };
  check(read_header(r, file));
  check_size("JPEG", r.jpeg.image_width, r.jpeg.image_height, limits);
  check(start(r));
  oriented_image out{.image = {.width = static_cast<int32_t>(r.jpeg.output_width),
                               .height = static_cast<int32_t>(r.jpeg.output_height),
                               .rgb = {}},
                     .orientation = r.orientation};
  const size_t row_bytes = static_cast<size_t>(out.image.width) * 3, height = static_cast<size_t>(out.image.height);
  std::vector<uint8_t> cmyk(r.is_cmyk ? static_cast<size_t>(out.image.width) * 4 : 0);
  out.image.rgb.reserve(row_bytes * height); // grows row by row: a cut-off file never touches the memory it claims
  for (size_t y = 0; y < height; ++y) {
    out.image.rgb.resize((y + 1) * row_bytes);
    uint8_t* to = out.image.rgb.data() + y * row_bytes;
    check(read_row(r, r.is_cmyk ? cmyk.data() : to));
    if (r.is_cmyk) cmyk_to_rgb(cmyk, to);
  }
  check(finish(r));
  return out;
}

} // namespace troupe::image_codecs
