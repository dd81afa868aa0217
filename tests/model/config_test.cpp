// Config files in both spellings, what they refuse, the roles they imply, and the hash constants of Engram.
#include "model/deepseek_v41/config.h"
#include "model/deepseek_v41/engram.h"
#include "tests/golden_file.h"
#include "tests/near.h"

#include <doctest/doctest.h>
#include <simdjson.h>

#include <fstream>
#include <iterator>
#include <string>

using namespace troupe;
using namespace troupe::deepseek_v41;

namespace {

std::string text_of(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

std::string nested() { return text_of(TROUPE_SOURCE_DIR "/tests/golden/model/tiny-b/config.json"); }

// `what` with its first `from` replaced.
std::string with(std::string what, const std::string& from, const std::string& to) {
  const size_t at = what.find(from);
  REQUIRE(at != std::string::npos);
  return what.replace(at, from.size(), to);
}

std::string refusal(const std::string& text) {
  try {
    parse_config(text, "config.json");
  } catch (const std::runtime_error& e) { return e.what(); }
  return "accepted";
}

const char* flat =
    R"({"vocab_size": 384, "dim": 64, "moe_inter_dim": 64, "n_layers": 8, "n_mtp_layers": 3, "n_heads": 6,
  "n_routed_experts": 6, "n_shared_experts": 1, "n_activated_experts": 3, "score_func": "sqrtsoftplus", "route_scale": 2.5,
  "swiglu_limit": 2.0, "q_lora_rank": 96, "head_dim": 64, "rope_head_dim": 16, "norm_eps": 1e-20, "o_groups": 2,
  "o_lora_rank": 32, "window_size": 16, "compress_ratios": [0, 2, 2, 2, 1, 1, 1, 1], "kv_source_layers": [1, 3, 4],
  "index_source_layers": [1, 3, 4, 6, 7], "compress_rope_theta": 160000.0, "rope_theta": 10000.0, "index_n_heads": 6,
  "index_head_dim": 32, "index_topk": 8, "candidate_source_layer": 4, "candidate_topk_blocks": 5,
  "candidate_block_size": 2, "hc_mult": 4, "hc_sinkhorn_iters": 20, "hc_eps": 1e-06, "engram_layer_ids": [0, 3],
  "engram_num_embeddings": [1916, 2148], "engram_max_ngram_size": 3, "engram_vocab_size": 300, "engram_n_heads": 3,
  "engram_head_dim": 32, "engram_pad_id": 2, "engram_compressed_vocab_size": 200, "dspark_block_size": 4,
  "dspark_noise_token_id": 383, "dspark_target_layer_ids": [5, 6], "dspark_markov_rank": 32,
  "dspark_n_routed_experts": 4, "dspark_n_activated_experts": 2, "image_token_id": 370, "rope_factor": 8,
  "beta_fast": 32, "beta_slow": 1, "original_seq_len": 64})";

} // namespace

TEST_CASE("config: the flat spelling says the same as the nested one") {
  const config a = parse_config(nested(), "config.json"), b = parse_config(flat, "inference/config.json");
  CHECK(a.dim == b.dim);
  CHECK(a.layers == b.layers);
  CHECK(a.heads == b.heads);
  CHECK(a.rope_dim == b.rope_dim);
  CHECK(a.window == b.window);
  CHECK(a.expert_width == b.expert_width);
  CHECK(a.active_experts == b.active_experts);
  CHECK(a.route_scale == b.route_scale);
  CHECK(a.ratios == b.ratios); // the flat one left the draft stages out
  CHECK(a.kv_sources == b.kv_sources);
  CHECK(a.index_sources == b.index_sources);
  CHECK(a.candidate_source == b.candidate_source);
  CHECK(a.engram.rows == b.engram.rows);
  CHECK(a.engram.pad_id == b.engram.pad_id);
  CHECK(a.draft.stages == b.draft.stages);
  CHECK(a.draft.active_experts == b.draft.active_experts);
  CHECK(a.image_id == b.image_id);
  CHECK(rope_frequencies(a, true) == rope_frequencies(b, true));
  CHECK(rope_frequencies(a, false) == rope_frequencies(b, false));
}

TEST_CASE("config: roles follow from the source lists") {
  const config c = parse_config(nested(), "config.json");
  const auto role = [&](int32_t l) { return c.role(l); };
  CHECK(role(0).kv_source == -1);
  CHECK(role(0).engram_slot == 0);
  CHECK((role(1).owns_kv && role(1).owns_index && role(1).ratio == 2));
  CHECK((role(2).kv_source == 1 && role(2).index_source == 1 && !role(2).owns_index));
  CHECK((role(4).makes_candidates && !role(4).uses_candidates));
  CHECK((role(5).kv_source == 4 && role(5).index_source == 4 && role(5).tap == 0));
  CHECK((role(6).uses_candidates && !role(6).owns_kv && role(6).tap == 1));
  CHECK(role(8).ratio == 0); // a draft stage
  CHECK(c.last_kv_source() == 4);
}

TEST_CASE("config: a refusal names file, key, expected and found") {
  CHECK(refusal(with(nested(), "\"hidden_size\": 64", "\"hidden_size\": \"big\"")) ==
        "config.json: text_config.hidden_size: expected an integer of at least 1, found \"big\"");
  CHECK(refusal(with(nested(), "\"head_dim\": 64,", "")) ==
        "config.json: text_config.head_dim: expected an integer, found nothing");
  CHECK(refusal(with(nested(), "\"o_groups\": 2", "\"o_groups\": 4")) ==
        "config.json: o_groups: expected a divisor of 6 heads, found 4");
  CHECK(refusal(with(nested(), "\"qk_rope_head_dim\": 16", "\"qk_rope_head_dim\": 66")).find("qk_rope_head_dim") !=
        std::string::npos);
  CHECK(refusal(with(nested(), "\"num_experts_per_tok\": 3", "\"num_experts_per_tok\": 7")) ==
        "config.json: num_experts_per_tok: expected at most 6, found 7");
  CHECK(refusal("[1]").find("config.json: expected a JSON object") == 0);
  CHECK(refusal("{") != "accepted");
}

TEST_CASE("config: source lists that leave a layer without keys are refused") {
  const std::string sources = "\"kv_source_layer_ids\": [\n   1,", key = "\"kv_source_layer_ids\": [\n   2,";
  CHECK(refusal(with(nested(), sources, key)) ==
        "config.json: kv_source_layer_ids: expected a source of ratio 2 for layer 1, found [2, 3, 4]");
}

TEST_CASE("engram: primes, offsets and row ids of the released configuration agree with golden data") {
  simdjson::dom::parser parser;
  const simdjson::dom::element want = parser.load(TROUPE_SOURCE_DIR "/tests/golden/model/units/engram_real.json");
  config c = parse_config(nested(), "config.json");
  c.engram.layers = {1, 14};
  c.engram.rows = {384006168, 384016682};
  c.engram.max_ngram = 4;
  c.engram.vocabulary = 16000000;
  c.engram.heads = 8;
  c.engram.compressed_vocabulary = 99092;
  c.engram.multipliers.clear(); // the released constants then
  const engram_hash hash(c, 2);
  for (size_t slot = 0; slot < 2; ++slot) {
    size_t column = 0;
    for (const simdjson::dom::array ngram : simdjson::dom::array(want["primes"].at(slot)))
      for (const int64_t p : ngram) CHECK(hash.primes()[slot][column++] == p);
    column = 0;
    for (const int64_t o : simdjson::dom::array(want["offsets"].at(slot))) CHECK(hash.offsets()[slot][column++] == o);
    column = 0;
    for (const int64_t m : simdjson::dom::array(want["multipliers"].at(slot)))
      CHECK(hash.multipliers()[slot][column++] == m);
  }
  std::vector<int32_t> history;
  std::vector<int64_t> ids(2 * 24);
  const simdjson::dom::array compressed = want["compressed"];
  for (const int64_t id : compressed) {
    history.push_back(static_cast<int32_t>(id));
    hash.row_ids(history, ids);
    size_t i = 0;
    bool equal = true;
    for (const simdjson::dom::array slot : simdjson::dom::array(want["rows"].at(history.size() - 1)))
      for (const int64_t row : slot) equal = equal && ids[i++] == row;
    INFO("position " << history.size() - 1);
    CHECK((equal && i == ids.size()));
  }
}

TEST_CASE("engram: multipliers nobody gives and sums that do not fit are refused by name") {
  config c = parse_config(nested(), "config.json");
  CHECK_THROWS_WITH(engram_hash(c, 2),
                    "config.json: engram_multipliers: expected one list for each Engram layer, found nothing");
  c.engram.multipliers = {{3, 5, 7}, {3, 5, 7}};
  c.engram.rows[1] = 2149;
  CHECK_THROWS_WITH(engram_hash(c, 2),
                    "config.json: engram_num_embeddings: expected 2148 for layer 3, the sum of its primes, found 2149");
}

TEST_CASE("config: rotation frequencies of the released configuration agree with golden data") {
  test::golden_file want(test::golden_in_tree("model") / "units/rope_real.safetensors");
  config c = parse_config(nested(), "config.json");
  c.rope_dim = 64;
  c.yarn.factor = 16;
  c.yarn.original_context = 65536;
  CHECK(test::relative_error(rope_frequencies(c, false), want.floats("window.freqs")) < 1e-6);
  CHECK(test::relative_error(rope_frequencies(c, true), want.floats("compressed.freqs")) < 1e-6);
}
