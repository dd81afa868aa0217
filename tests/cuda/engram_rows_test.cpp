// Engram rows and their gate on the device against the host twins.
#include "gpu/engram_rows.h"
#include "tests/cuda/alone.h"

namespace troupe::test {
namespace {

TEST_CASE("cuda engram_rows: every format has the bits of the twin, whatever the bytes are") {
  twins t;
  for (engram_format format : {engram_format::fp8, engram_format::mxint4, engram_format::mxint3, engram_format::bf16})
    for (int64_t block : {32, 16})
      for (int64_t width : {32, 96, 256}) {
        if (block == 16 && format == engram_format::fp8) continue;
        const int64_t n_bytes = engram_record_bytes(format, width, block);
        for (int64_t n : {1, 3, 33}) {
          std::mt19937 bits(50);
          std::vector<uint8_t> records(static_cast<size_t>(n * 3 * n_bytes));
          for (uint8_t& byte : records) byte = static_cast<uint8_t>(bits());
          const auto x = t.make(dtype::u8, {n, 3, n_bytes}, records), y = t.output({n, 3, width});
          t.run([&](backend& b) { b.dequant_rows(t.of(b, y), t.of(b, x), format, width); });
          t.equal("dequant_rows", y);
        }
      }
}

TEST_CASE("cuda engram_rows: plain numbers may have any width") {
  twins t;
  std::vector<uint16_t> words(5 * 37);
  for (size_t i = 0; i < words.size(); ++i) words[i] = static_cast<uint16_t>(i * 353);
  const auto x = t.make(dtype::u8, {5, 1, 74}, words), y = t.output({5, 1, 37});
  t.run([&](backend& b) { b.dequant_rows(t.of(b, y), t.of(b, x), engram_format::bf16, 37); });
  t.equal("dequant_rows", y);
}

TEST_CASE("cuda engram_rows: the gate is near the twin, a row's own, and zero for dead rows") {
  twins t;
  struct shape {
    int64_t copies, dim;
  };
  for (const auto [m, dim] : {shape{4, 5120}, {4, 96}, {3, 37}, {1, 1}})
    for (int64_t n : {1, 3, 33}) {
      const auto h = t.floats({n, m, dim}, 51), kv = t.floats({n, m + 1, dim}, 52);
      const auto q = t.floats({m, dim}, 53), k = t.floats({m, dim}, 54), gates = t.output({n, m});
      std::vector<int32_t> marks(static_cast<size_t>(n), 0);
      for (size_t r = 1; r < marks.size(); r += 3) marks[r] = 1;
      const auto dead = t.ints({n}, marks);
      const auto original = t.read_device(h);
      t.run([&](backend& b) {
        b.engram_gate(t.of(b, h), t.of(b, kv), t.of(b, q), t.of(b, k), t.of(b, dead), t.of(b, gates), 1e-6F);
      });
      t.near("engram gates", gates, 2e-5);
      t.near("engram_gate", h, 2e-5);
      alone_equals_together(
          "engram_gate", t, h,
          [&](backend& b, int64_t first, int64_t count) {
            b.engram_gate(h.device.slice(first, count), kv.device.slice(first, count), q.device, k.device,
                          dead.device.slice(first, count), gates.device.slice(first, count), 1e-6F);
          },
          [&] { t.device->upload(h.device, original.data(), h.device.size_bytes()); });
      t.run([&](backend& b) {
        b.engram_gate(t.of(b, h), t.of(b, kv), t.of(b, q), t.of(b, k), tensor(), tensor(), 1e-6F);
      });
    }
}

} // namespace
} // namespace troupe::test
