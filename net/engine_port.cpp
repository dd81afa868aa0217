// Joins the runtime's front to the few functions that the network side calls.
#include "net/engine_port.h"

#include "actors/system.h"

#include <caf/all.hpp>

#include <ctime>

namespace troupe {

std::shared_ptr<const engine_port> to_engine_port(caf::actor_system& system, const front& f) {
  auto facts = std::make_shared<request_facts>();
  facts->config = f.config;
  facts->model_names = f.config.served_names;
  if (facts->model_names.empty()) facts->model_names.push_back(f.info.name);
  const auto words = f.text->words();
  facts->vocabulary = std::min<int64_t>(f.info.vocabulary, words->size());
  facts->max_context = f.max_context;
  facts->eos = f.info.eos;
  const auto suppressed = f.text->suppressed_ids();
  facts->suppressed.assign(suppressed.begin(), suppressed.end());
  facts->block_tokens = f.info.block_tokens;
  facts->default_temperature = f.info.default_temperature;
  facts->default_top_p = f.info.default_top_p;
  facts->fingerprint = f.fingerprint;
  facts->started_at = static_cast<int64_t>(std::time(nullptr));
  facts->encode = [words](std::string_view text) { return words->encode(text); };
  facts->token_bytes = [words](int32_t id) { return words->bytes(id); };
  facts->decode = [words](const std::vector<int32_t>& ids) { return words->decode(ids, false); };

  auto port = std::make_shared<engine_port>();
  port->system = &system;
  port->facts = std::move(facts);
  port->prepare = f.prepare;
  port->start = [&system, f](chat_request request, std::shared_ptr<turn_sink> sink) {
    return spawn_request(system, f, std::move(request), std::move(sink));
  };
  port->resume = [journal = f.journal](turn_id turn) { caf::anon_send(journal, stream_resumed{turn}); };
  return port;
}

} // namespace troupe
