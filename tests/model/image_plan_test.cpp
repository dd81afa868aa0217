// Image planning against the released sizes, padding and patches (golden units), and its edges. Spec: vision.md 1.
#include "model/deepseek_v41/image_plan.h"
#include "model/resample.h"

#include <doctest/doctest.h>
#include <simdjson.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>

using namespace troupe;
using namespace troupe::deepseek_v41;

namespace {

const std::string golden_units = TROUPE_SOURCE_DIR "/tests/golden/model/units/";
const vision_plan_config real = {
    .patch = 14, .downsample = 3, .max_tokens = 1024, .min_pixels = 544 * 544, .max_wh_ratio = {}};
const vision_plan_config small = {
    .patch = 14, .downsample = 3, .max_tokens = 40, .min_pixels = 3600, .max_wh_ratio = {}};

// Read by hand: this file's BF16 tensors start at odd offsets, which storage/safetensors rightly refuses in a
// checkpoint.
struct golden_file {
  std::string bytes;
  simdjson::dom::parser parser;
  simdjson::dom::element header;
  size_t data = 0;

  explicit golden_file(const std::string& path) {
    std::ifstream in(path, std::ios::binary);
    bytes.assign(std::istreambuf_iterator<char>(in), {});
    REQUIRE(bytes.size() > 8);
    uint64_t n = 0;
    std::memcpy(&n, bytes.data(), 8);
    data = 8 + n;
    REQUIRE(data < bytes.size());
    header = parser.parse(bytes.data() + 8, n);
  }
  int64_t side(const std::string& name, size_t i) const { return header[name]["shape"].at(i).get_int64().value(); }
  template <class T> std::vector<T> values(const std::string& name) const {
    const auto offset = [&](size_t i) { return header[name]["data_offsets"].at(i).get_uint64().value(); };
    REQUIRE(data + offset(1) <= bytes.size());
    std::vector<T> out((offset(1) - offset(0)) / sizeof(T));
    std::memcpy(out.data(), bytes.data() + data + offset(0), out.size() * sizeof(T));
    return out;
  }
};

rgb_image picture(int32_t width, int32_t height) {
  rgb_image image{.width = width, .height = height, .rgb = {}};
  for (int32_t y = 0; y < height; ++y)
    for (int32_t x = 0; x < width; ++x)
      for (int32_t c = 0; c < 3; ++c)
        image.rgb.push_back(static_cast<uint8_t>((x * 37 + y * 91 + c * 53 + x * y) & 255));
  return image;
}

} // namespace

TEST_CASE("image_plan: every released size gives the released grid") {
  simdjson::dom::parser parser;
  simdjson::dom::element root = parser.load(golden_units + "image_plan_real.json");
  int n = 0;
  for (simdjson::dom::array row : root["rows"].get_array()) {
    const auto at = [&](size_t i) { return row.at(i).get_int64().value(); };
    CAPTURE(at(0));
    CAPTURE(at(1));
    const image_grid grid = plan_grid(at(0), at(1), real);
    CHECK(grid.grid_h == at(2));
    CHECK(grid.grid_w == at(3));
    CHECK(grid.height_px == at(4));
    CHECK(grid.width_px == at(5));
    CHECK(grid.n_tokens == int64_t{grid.grid_h} * (grid.grid_w + 1) + 2);
    CHECK(grid.n_tokens <= real.max_tokens);
    ++n;
  }
  MESSAGE("image_plan_real.json: ", n, " sizes");
  CHECK(n > 40);
}

TEST_CASE("image_plan: padded pixels and patches are the golden ones") {
  const golden_file file(golden_units + "image_preprocess.safetensors");
  for (const std::string i : {"0", "1", "2"}) {
    CAPTURE(i);
    const rgb_image image{.width = static_cast<int32_t>(file.side(i + ".image", 1)),
                          .height = static_cast<int32_t>(file.side(i + ".image", 0)),
                          .rgb = file.values<uint8_t>(i + ".image")};
    const planned_image plan = plan_image(image, small);
    const auto grid = file.values<int32_t>(i + ".grid"); // patches down, across, tokens down, across
    REQUIRE(grid.size() == 4);
    CHECK(plan.height == grid[0] * 14);
    CHECK(plan.width == grid[1] * 14);
    CHECK(plan.grid_h == grid[2]);
    CHECK(plan.grid_w == grid[3]);

    const auto padded = file.values<uint8_t>(i + ".padded");
    REQUIRE(plan.rgb.size() == padded.size());
    int n_off = 0, most = 0;
    for (size_t k = 0; k < padded.size(); ++k) {
      const int off = std::abs(int{plan.rgb[k]} - int{padded[k]});
      n_off += off != 0;
      most = std::max(most, off);
    }
    CHECK(most <= 1);  // what the golden data allow
    CHECK(n_off == 0); // what this resampler achieves

    std::vector<float> patches;
    image_patches(plan, 14, patches);
    CHECK(patches.size() == static_cast<size_t>(grid[0]) * static_cast<size_t>(grid[1]) * 588);
    const auto first = file.values<uint16_t>(i + ".patches_first");
    REQUIRE(first.size() == 4 * 588);
    int n_wrong = 0;
    for (size_t k = 0; k < first.size(); ++k) {
      const uint32_t bits = uint32_t{first[k]} << 16;
      n_wrong += std::memcmp(&bits, &patches[k], 4) != 0;
    }
    CHECK(n_wrong == 0);
  }
}

TEST_CASE("image_plan: no size exceeds the token limit or loses a side") {
  for (const int32_t n : {4, 5, 40, 256, 1024})
    for (const int32_t r : {1, 2, 3})
      for (const int64_t least : {int64_t{0}, int64_t{3600}, int64_t{295936}}) {
        const vision_plan_config c{
            .patch = 14, .downsample = r, .max_tokens = n, .min_pixels = least, .max_wh_ratio = {}};
        for (int64_t w = 1; w <= 1'000'000; w = w * 5 / 2 + 1)
          for (int64_t h = 1; h <= 1'000'000 && w * h <= 100'000'000; h = h * 5 / 2 + 1) {
            const image_grid grid = plan_grid(w, h, c);
            const bool fits = grid.n_tokens <= n && grid.width_px > 0 && grid.height_px > 0 && grid.grid_h > 0 &&
                              grid.grid_w > 0 && grid.width_px % 14 == 0 && grid.height_px % 14 == 0;
            if (!fits) FAIL(w, " x ", h, " with limit ", n, " and downsample ", r);
          }
      }
}

TEST_CASE("image_plan: an image wider than the ratio limit is stretched, a narrower one padded") {
  vision_plan_config c = small;
  c.min_pixels = 0;
  c.max_wh_ratio = 2.0;
  const image_grid wide = plan_grid(140, 14, c);
  CHECK(wide.width_px == 28);
  CHECK(wide.height_px == 14);
  rgb_image image = picture(140, 14);
  CHECK(plan_image(image, c).rgb == resize_bicubic(image, 28, 14).rgb);
  image = picture(20, 14); // planned 28 x 14: grey on both sides
  const planned_image padded = plan_image(image, c);
  CHECK(padded.width == 28);
  CHECK(padded.rgb[0] == 127);
  CHECK(std::equal(image.rgb.begin(), image.rgb.begin() + 60, padded.rgb.begin() + 4 * 3));
}

TEST_CASE("image_plan: the hash tells sizes and pixels apart and nothing else") {
  const rgb_image image = picture(56, 84);
  const planned_image a = plan_image(image, small);
  CHECK(a.hash == plan_image(image, small).hash);
  rgb_image other = image;
  other.rgb[1000] ^= 1;
  CHECK(plan_image(other, small).hash != a.hash);
  rgb_image flat{.width = 56, .height = 84, .rgb = std::vector<uint8_t>(56 * 84 * 3, 9)}, turned = flat;
  std::swap(turned.width, turned.height);
  CHECK(plan_image(flat, small).hash != plan_image(turned, small).hash);
}

TEST_CASE("image_plan: a configuration without sense is refused by key") {
  const auto why = [](vision_plan_config c) {
    try {
      plan_grid(10, 10, c);
    } catch (const std::runtime_error& e) { return std::string(e.what()); }
    return std::string("accepted");
  };
  vision_plan_config c = real;
  c.patch = 0;
  CHECK(why(c) == "config.json, vision_config.patch_size: expected 1..1024, found 0");
  c = real;
  c.downsample = -3;
  CHECK(why(c).find("downsample_ratio") != std::string::npos);
  c = real;
  c.max_tokens = 3;
  CHECK(why(c).find("max_image_tokens") != std::string::npos);
  c = real;
  c.min_pixels = -1;
  CHECK(why(c).find("min_pixels") != std::string::npos);
  c = real;
  c.max_wh_ratio = 0;
  CHECK(why(c).find("max_wh_ratio") != std::string::npos);
}

TEST_CASE("resample: the same size copies, a flat colour stays flat, one pixel fills") {
  const rgb_image image = picture(9, 7);
  CHECK(resize_bicubic(image, 9, 7).rgb == image.rgb);
  rgb_image flat{.width = 31, .height = 17, .rgb = std::vector<uint8_t>(31 * 17 * 3, 200)};
  for (const uint8_t v : resize_bicubic(flat, 5, 90).rgb) CHECK(v == 200);
  const rgb_image dot{.width = 1, .height = 1, .rgb = {1, 2, 3}};
  const rgb_image big = resize_bicubic(dot, 4, 4);
  for (size_t i = 0; i < big.rgb.size(); ++i) CHECK(big.rgb[i] == i % 3 + 1);
}

TEST_CASE("resample: padding centres, halves go to the even side, a side never vanishes") {
  const rgb_image dot{.width = 2, .height = 2, .rgb = std::vector<uint8_t>(12, 7)};
  // Free columns: 5 - 2 = 3, 1.5 rounds to 2; 3 - 2 = 1, 0.5 rounds to 0.
  const rgb_image five = pad_bicubic(dot, 5, 2, {0, 0, 0}), three = pad_bicubic(dot, 3, 2, {0, 0, 0});
  const std::vector<uint8_t> row5 = {0, 0, 0, 0, 0, 0, 7, 7, 7, 7, 7, 7, 0, 0, 0}, row3 = {7, 7, 7, 7, 7, 7, 0, 0, 0};
  CHECK(std::equal(row5.begin(), row5.end(), five.rgb.begin()));
  CHECK(std::equal(row3.begin(), row3.end(), three.rgb.begin()));
  const rgb_image tall = pad_bicubic(picture(1, 3000), 14, 14, {127, 127, 127});
  CHECK(tall.width == 14);
  CHECK(tall.height == 14);
}
