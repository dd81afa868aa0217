// Checkpoints in every form a tensor can have, and what is refused before anything is loaded.
#include "model/deepseek_v41/checkpoint.h"

#include "gpu/formats.h"
#include "model/deepseek_v41/resolve.h"
#include "model/deepseek_v41/stored_part.h"
#include "tests/model/golden_case.h"
#include "tests/safetensors_writer.h"

#include <functional>

using namespace golden;
using test::tensor_to_write;

namespace {

using tensor_list = std::vector<tensor_to_write>;

// The golden tiny-b checkpoint, changed by `edit`, in a folder of its own.
struct edited_case {
  test::temp_folder keep;
  case_folder folder;

  explicit edited_case(const std::function<void(tensor_list&)>& edit) : folder(base()) {
    const checkpoint_files files(folder.folder);
    tensor_list all;
    for (const tensor_info& t : files.tensors()) all.push_back({t.name, t.type, t.shape, files.read(t)});
    edit(all);
    test::write_safetensors(keep.path() / "model.safetensors", all);
    fs::copy_file(folder.folder / "config.json", keep.path() / "config.json");
    folder.folder = keep.path();
  }
  static const case_folder& base() {
    static const case_folder b(find_case("tiny-b"), "native");
    return b;
  }
  std::string refusal() const {
    try {
      checkpoint(folder.folder).require(true, true);
    } catch (const checkpoint_error& e) { return e.what(); }
    return "accepted";
  }
  checkpoint_report report() const { return verify_checkpoint(folder.folder); }
};

tensor_to_write& at(tensor_list& all, const std::string& name) {
  for (tensor_to_write& t : all)
    if (t.name == name) return t;
  throw std::logic_error("no tensor " + name);
}
void take_out(tensor_list& all, const std::string& name) {
  at(all, name);
  std::erase_if(all, [&](const tensor_to_write& t) { return t.name == name; });
}

std::vector<float> logits_of(const case_folder& folder) {
  const std::vector<int32_t> ids{5, 300, 17, 17, 200, 9, 83, 41, 5, 300, 17, 2};
  std::vector<float> out;
  on_ranks(1, [&](backend& be, int) {
    runner r(be, folder, 16);
    out = r.prefill(ids, 5);
  });
  return out;
}
const std::vector<float>& base_logits() {
  static const std::vector<float> l = logits_of(edited_case::base());
  return l;
}

} // namespace

TEST_CASE("checkpoint: missing tensors are listed by family and layer, all at once") {
  const edited_case c([](tensor_list& all) {
    for (const char* part : {"weight", "scale"}) {
      take_out(all, std::string("layers.3.attn.wq_a.") + part);
      take_out(all, std::string("layers.3.attn.wkv.") + part);
      take_out(all, std::string("layers.5.ffn.experts.4.w2.") + part);
    }
    take_out(all, "mtp.2.norm.weight");
    take_out(all, "layers.1.attn.indexer.k_norm.weight");
  });
  const std::string what = c.refusal();
  for (const char* line : {"attention of layer 3: wq_a, wkv\n", "experts of layer 5: 4.w2",
                           "draft heads of draft stage 2: norm.weight", "indexer of layer 1: k_norm.weight"})
    CHECK_MESSAGE(what.find(line) != std::string::npos, what);
  CHECK(c.report().problems.size() == 4);
}

TEST_CASE("checkpoint: draft tensors are needed only where the draft is loaded") {
  const edited_case c([](tensor_list& all) { take_out(all, "mtp.2.norm.weight"); });
  CHECK_NOTHROW(checkpoint(c.folder.folder).require(false, true));
  CHECK_THROWS_AS(checkpoint(c.folder.folder).require(true, true), checkpoint_error);
}

TEST_CASE("checkpoint: a wrong shape and a wrong type name tensor, expected and found") {
  const edited_case c([](tensor_list& all) {
    at(all, "layers.0.attn.q_norm.weight").shape = {48, 2};
    at(all, "layers.2.ffn.gate.bias").type = dtype::i32;
    at(all, "layers.0.attn.wq_b.scale").shape = {1, 36};
  });
  const std::string what = c.refusal();
  for (const char* line : {"layers.0.attn.q_norm.weight: expected F32, BF16 or F16 [96], found BF16 [48, 2]",
                           "layers.2.ffn.gate.bias: expected F32, BF16 or F16 [6], found I32 [6]",
                           "layers.0.attn.wq_b.scale: expected F8_E8M0 [12, 3], found F8_E8M0 [1, 36]"})
    CHECK_MESSAGE(what.find(line) != std::string::npos, what);
}

TEST_CASE("checkpoint: a scale that is missing, a form that is given twice, an unknown tensor") {
  const edited_case c([](tensor_list& all) {
    take_out(all, "layers.0.attn.wq_b.scale");
    all.push_back({"layers.0.attn.wkv.trellis", dtype::i16, {4, 4, 16}, std::vector<std::byte>(512)});
    all.push_back({"layers.0.attn.wq_c.weight", dtype::f32, {1}, std::vector<std::byte>(4)});
  });
  const std::string what = c.refusal();
  CHECK_MESSAGE(what.find("layers.0.attn.wq_b.scale: expected F8_E8M0 [12, 3], found nothing") != std::string::npos,
                what);
  CHECK_MESSAGE(what.find("layers.0.attn.wkv: expected one form, found both .weight and .trellis") != std::string::npos,
                what);
  CHECK(c.report().unknown == std::vector<std::string>{"layers.0.attn.wq_c.weight"});
  CHECK(c.report().text().find("unknown: layers.0.attn.wq_c.weight") != std::string::npos);
}

TEST_CASE("checkpoint: the optional model. prefix and lm_head load as the plain names do") {
  const edited_case c([](tensor_list& all) {
    for (tensor_to_write& t : all) t.name = t.name == "head.weight" ? "lm_head.weight" : "model." + t.name;
  });
  CHECK(c.refusal() == "accepted");
  CHECK(c.report().unknown.empty());
  CHECK(logits_of(c.folder) == base_logits());
}

TEST_CASE("checkpoint: without bias_vl the router's bias serves image tokens, too") {
  const edited_case c([](tensor_list& all) {
    std::erase_if(all, [](const tensor_to_write& t) { return t.name.ends_with("bias_vl"); });
  });
  CHECK(c.refusal() == "accepted");
  CHECK(logits_of(c.folder) == base_logits());
}

TEST_CASE("checkpoint: wo_a as one matrix for each group gives the same bits as whole") {
  const edited_case c([](tensor_list& all) {
    tensor_list slices;
    for (tensor_to_write& t : all) {
      const size_t at = t.name.find("attn.wo_a.");
      if (at == std::string::npos) continue;
      for (int64_t g = 0; g < 2; ++g) {
        tensor_to_write s = t;
        s.name = t.name.substr(0, at) + "attn.wo_a.slice." + std::to_string(g) + t.name.substr(at + 9);
        s.shape[0] /= 2;
        const size_t half = t.bytes.size() / 2;
        s.bytes.assign(t.bytes.begin() + static_cast<std::ptrdiff_t>(static_cast<size_t>(g) * half),
                       t.bytes.begin() + static_cast<std::ptrdiff_t>(static_cast<size_t>(g + 1) * half));
        slices.push_back(std::move(s));
      }
    }
    std::erase_if(all, [](const tensor_to_write& t) { return t.name.find("attn.wo_a.") != std::string::npos; });
    all.insert(all.end(), slices.begin(), slices.end());
  });
  CHECK(c.refusal() == "accepted");
  CHECK(c.report().unknown.empty());
  CHECK(logits_of(c.folder) == base_logits());
}

TEST_CASE("checkpoint: an Engram table in MXINT-4 or MXINT-3 is recognised by its width") {
  for (const auto& [bytes, format] : {std::pair{16, engram_format::mxint4}, std::pair{12, engram_format::mxint3}}) {
    const edited_case c([bytes = bytes](tensor_list& all) {
      tensor_to_write& w = at(all, "layers.0.engram.embed.weight");
      w.type = dtype::u8;
      w.shape = {1916, bytes};
      w.bytes.assign(static_cast<size_t>(1916 * bytes), std::byte{0x21});
      tensor_to_write& s = at(all, "layers.0.engram.embed.scale");
      s.type = dtype::f8_e4m3;
      s.bytes.assign(s.bytes.size(), std::byte{0x38}); // 1.0
    });
    CHECK(c.refusal() == "accepted");
    const found_table t = checkpoint(c.folder.folder).table_at(0);
    CHECK(t.format == format);
    CHECK(t.record_bytes == bytes + 1);
    for (const float v : logits_of(c.folder)) REQUIRE(std::isfinite(v));
  }
}

TEST_CASE("tables: a row that holds no number fails by name instead of being served") {
  const edited_case c([](tensor_list& all) {
    tensor_to_write& w = at(all, "layers.0.engram.embed.weight");
    w.bytes.assign(w.bytes.size(), std::byte{0x7F});
  });
  try {
    logits_of(c.folder);
    FAIL("expected a refusal");
  } catch (const std::system_error& e) {
    CHECK(std::string(e.what()).find("layers.0.engram.embed.weight: row ") != std::string::npos);
  }
}

TEST_CASE("tables: a token without a compressed id and a gap in the history are refused") {
  const checkpoint files(edited_case::base().folder);
  engram_tables tables(files, edited_case::base().token_map, 0, 1, 2);
  const std::vector<int32_t> ids{384};
  sequence_rows s;
  s.tokens = ids;
  CHECK_THROWS_AS(tables.row_ids({&s, 1}), std::system_error);
  const std::vector<int32_t> fine{3};
  s.tokens = fine;
  s.start = 4;
  CHECK_THROWS_AS(tables.row_ids({&s, 1}), std::system_error);
}

TEST_CASE("tables: a range read again after a rollback gives the same rows") {
  const checkpoint files(edited_case::base().folder);
  engram_tables tables(files, edited_case::base().token_map, 0, 1, 2);
  const std::vector<int32_t> ids{3, 50, 60, 70, 80}, other{99, 98};
  sequence_rows s;
  s.tokens = ids;
  const std::vector<int64_t> first = tables.row_ids({&s, 1});
  s.tokens = other;
  s.start = 3;
  tables.row_ids({&s, 1});
  s.tokens = std::span(ids).subspan(3);
  const std::vector<int64_t> again = tables.row_ids({&s, 1});
  CHECK(std::equal(again.begin(), again.end(), first.end() - static_cast<std::ptrdiff_t>(again.size())));
}

namespace {

// A packed matrix of 128 x 128 with one K, checked by the resolver alone.
struct packed_case {
  test::temp_folder keep;
  std::vector<std::string> problems;
  found_matrix found;

  explicit packed_case(const std::function<void(tensor_list&)>& edit) {
    tensor_list all{{"m.trellis", dtype::i16, {8, 8, 32}, std::vector<std::byte>(8 * 8 * 64)},
                    {"m.suh", dtype::f16, {128}, std::vector<std::byte>(256)},
                    {"m.svh", dtype::f16, {128}, std::vector<std::byte>(256)},
                    {"m.mul1", dtype::i32, {}, test::to_bytes(std::vector<int32_t>{-2082680531})}};
    edit(all);
    test::write_safetensors(keep.path() / "model.safetensors", all);
    fs::copy_file(edited_case::base().folder / "config.json", keep.path() / "config.json");
    const checkpoint files(keep.path());
    std::unordered_set<const tensor_info*> used;
    resolver r(files, used);
    found = r.matrix("m", 128, 128, bias_rule::optional);
    problems = r.problems();
  }
  std::string problem() const { return problems.empty() ? "" : problems.front(); }
};

} // namespace

TEST_CASE("resolve: EXL3 in every rate and codebook, told from shape and marker") {
  CHECK(packed_case([](tensor_list&) {}).problem() == "");
  for (const int64_t last : {16, 48, 64, 80, 96, 112, 128, 24, 40, 56}) {
    const packed_case c([&](tensor_list& all) {
      all[0].shape[2] = last;
      all[0].bytes.resize(static_cast<size_t>(64 * 2 * last));
    });
    CHECK(c.problem() == "");
  }
  const packed_case mcg([](tensor_list& all) {
    all[3] = {"m.mcg", dtype::i32, {1}, test::to_bytes(std::vector<int32_t>{-877912083})};
  });
  CHECK(mcg.problem() == "");
  CHECK(mcg.found.book == stored_matrix::codebook::mcg);
  const packed_case inst3([](tensor_list& all) { all.pop_back(); });
  CHECK(inst3.problem() == "");
  CHECK(inst3.found.book == stored_matrix::codebook::inst3);
}

TEST_CASE("resolve: EXL3 that would decode to garbage is refused by name") {
  CHECK(packed_case([](tensor_list& all) { all[3].bytes = test::to_bytes(std::vector<int32_t>{7}); }).problem() ==
        "m.mul1: expected the codebook marker -2082680531, found 7");
  CHECK(packed_case([](tensor_list& all) {
          all.push_back({"m.mcg", dtype::i32, {}, test::to_bytes(std::vector<int32_t>{-877912083})});
        }).problem() == "m: expected one codebook marker, found both .mul1 and .mcg");
  CHECK(packed_case([](tensor_list& all) { take_out(all, "m.svh"); }).problem() ==
        "m.svh: expected F16 [128], found nothing");
  CHECK(packed_case([](tensor_list& all) {
          all.push_back({"m.scale", dtype::f32, {1}, std::vector<std::byte>(4)});
        }).problem() == "m.scale: expected no scale beside a trellis, found F32 [1]");
  const packed_case half_mcg([](tensor_list& all) { // half rates exist with mul1 only
    all[0].shape[2] = 24;
    all[0].bytes.resize(64 * 48);
    all.pop_back();
  });
  CHECK(half_mcg.problem().find("m.trellis: expected 16 K") == 0);
  const packed_case other([](tensor_list& all) {
    all[0].shape = {16, 8, 32};
    all[0].bytes.resize(16 * 8 * 64);
  });
  CHECK(other.problem().find("m.trellis: expected the matrix [128, 128] padded") == 0);
}

TEST_CASE("stored_part: legacy sign words become +-1, side vectors that are not finite are refused") {
  const auto open = [](const packed_case& c) { return checkpoint_files(c.keep.path()); };
  const packed_case legacy([](tensor_list& all) {
    all[1] = {"m.su", dtype::i16, {8}, test::to_bytes(std::vector<uint16_t>{0x0005, 0, 0, 0, 0, 0, 0, 0x8000})};
  });
  REQUIRE(legacy.problem() == "");
  const auto files = open(legacy);
  found_matrix m = legacy.found;
  m.trellis = files.find("m.trellis");
  m.suh = files.find("m.su");
  m.svh = files.find("m.svh");
  const stored_part p = read_part(files, m, {});
  const uint16_t* signs = p.matrix.suh.as<uint16_t>();
  CHECK(signs[0] == 0xBC00);
  CHECK(signs[1] == 0x3C00);
  CHECK(signs[2] == 0xBC00);
  CHECK(signs[127] == 0xBC00);
  CHECK_THROWS_AS(read_part(files, m, {.out_first = 64, .out_count = 64}), checkpoint_error); // 128 is the unit
  const packed_case broken([](tensor_list& all) { all[1].bytes[5] = std::byte{0x7C}; });
  const auto broken_files = open(broken);
  m.trellis = broken_files.find("m.trellis");
  m.suh = broken_files.find("m.suh");
  m.svh = broken_files.find("m.svh");
  CHECK_THROWS_WITH(read_part(broken_files, m, {}), "m.suh: expected finite numbers, found none at 2");
}

TEST_CASE("stored_part: a packed matrix padded to 128 gives the outputs of its own size") {
  // Stored 128 x 128 for a linear of 100 outputs and 90 inputs; the padded outputs have svh 0.
  std::vector<uint16_t> trellis(8 * 8 * 32), ones(128, 0x3C00), svh(128, 0x3C00);
  for (size_t i = 0; i < trellis.size(); ++i) trellis[i] = static_cast<uint16_t>(i * 40503U >> 3);
  std::fill(svh.begin() + 100, svh.end(), uint16_t{0});
  stored_matrix m;
  m.how = stored_matrix::format::exl3;
  m.name = "padded";
  m.trellis = tensor(trellis.data(), dtype::i16, {8, 8, 32});
  m.suh = tensor(ones.data(), dtype::f16, {128});
  m.svh = tensor(svh.data(), dtype::f16, {128});
  m.out = m.in = 128;
  on_ranks(1, [&](backend& be, int) {
    const auto whole = be.load(m);
    stored_matrix cut = m;
    cut.out = 100;
    cut.in = 90;
    const auto real = be.load(cut);
    CHECK(real->out == 100);
    std::vector<float> x(128), y(128), z(100);
    for (size_t i = 0; i < 90; ++i) x[i] = static_cast<float>(i % 7) - 3;
    be.linear(tensor(y.data(), dtype::f32, {1, 128}), tensor(x.data(), dtype::f32, {1, 128}), *whole);
    be.linear(tensor(z.data(), dtype::f32, {1, 100}), tensor(x.data(), dtype::f32, {1, 90}), *real);
    CHECK(std::equal(z.begin(), z.end(), y.begin()));
  });
}
