// Ring step 3 and the life of a turn: prepare, admit, then wait for its end; writes its one log line.
#include "actors/request.h"

#include "actors/guard.h"
#include "actors/prepare.h"
#include "actors/system.h"

#include <caf/all.hpp>

#include <chrono>
#include <cstring>

namespace troupe {

namespace {

using clock = std::chrono::steady_clock;
constexpr uint64_t max_choices = 1 << 16; // of a turn: a sequence's id is its turn's and its index

using timed_request = request_actor::extend<caf::reacts_to<due_atom>>; // due_atom: the deadline, from itself

struct request_state {
  static inline const char* name = "request";
  enum class stage : uint8_t { preparing, queueing, running };
  stage at = stage::preparing;
  turn_id turn{};
  std::string id;
  std::shared_ptr<turn_sink> sink; // lent to fan_out when the turn is admitted
  journal_actor journal;           // the door to the ring
  prepare_actor prepare;
  chat_request source;               // of a turn with images: what to prepare again when ranks have lost them
  std::vector<planned_image> images; // until they are on the way
  std::vector<sequence_id> image_owners;
  uint64_t wanted_ranks = 0; // that wait for images which are being prepared again
  std::shared_ptr<counters> numbers;
  clock::time_point born{}, opened{};
  int64_t n_prompt = 0;
  int64_t asked_tokens = 0; // max_tokens as the client set it; 0: not set
  int32_t asked_choices = 1;
};
using request_pointer = timed_request::stateful_pointer<request_state>;

double ms(int64_t us) { return static_cast<double>(us) / 1e3; }
double seconds(int64_t us) { return static_cast<double>(us) / 1e6; }
int64_t us(clock::duration d) { return std::chrono::duration_cast<std::chrono::microseconds>(d).count(); }

void count_end(counters& numbers, std::string_view cause) {
  if (cause == "abort")
    ++numbers.ended_abort;
  else if (cause == "length")
    ++numbers.ended_length;
  else if (cause.substr(0, 5) == "error")
    ++numbers.ended_error;
  else
    ++numbers.ended_stop;
}

// The turn ended before it ran.
void end_early(request_pointer self, const std::string& cause) {
  auto& s = self->state;
  spdlog::info("request {}: {} prompt tokens, never ran, total {:.1f} ms; {}", s.id, s.n_prompt,
               ms(us(self->clock().now() - s.born)), cause);
  self->quit();
}

void refuse(request_pointer self, const api_error& why) {
  ++self->state.numbers->ended_refused;
  self->state.sink->fail(why);
  end_early(self, "refused " + std::to_string(why.status) + ": " + why.message);
}

void end(request_pointer self, const turn_ended& e) {
  auto& s = self->state;
  auto& n = *s.numbers;
  const int64_t total = us(self->clock().now() - s.born);
  const bool has_spoken = e.first_token_us > 0 || e.usage.completion_tokens > 0;
  const int64_t first = us(s.opened - s.born) + e.first_token_us;
  count_end(n, e.cause);
  n.e2e.observe(seconds(total));
  n.asked_choices.observe(s.asked_choices);
  if (s.asked_tokens > 0) n.asked_tokens.observe(static_cast<double>(s.asked_tokens));
  n.queue_time.observe(seconds(e.queue_us));
  if (has_spoken) {
    n.ttft.observe(seconds(first));
    n.prefill_time.observe(seconds(std::max<int64_t>(e.first_token_us - e.queue_us, 0)));
    n.decode_time.observe(seconds(e.decode_us));
    n.inference_time.observe(seconds(std::max<int64_t>(e.first_token_us - e.queue_us, 0) + e.decode_us));
  }
  spdlog::info("request {}: {} prompt tokens ({} cached), {} completion tokens ({} reasoning), queue {:.1f} ms, first "
               "token {:.1f} ms, total {:.1f} ms; {}",
               s.id, e.usage.prompt_tokens, e.usage.cached_tokens, e.usage.completion_tokens, e.usage.reasoning_tokens,
               ms(e.queue_us), has_spoken ? ms(first) : 0.0, ms(total), e.cause);
  self->quit();
}

void send_images(request_pointer self, std::vector<planned_image> images, uint64_t ranks) {
  auto& s = self->state;
  for (size_t i = 0; i < images.size() && !s.image_owners.empty(); ++i) {
    const auto& image = images[i];
    for (size_t at = 0; at < image.rgb.size(); at += piece_bytes) {
      const size_t n = std::min(piece_bytes, image.rgb.size() - at);
      image_piece piece{s.image_owners, static_cast<int32_t>(i),  image.hash, image.width, image.height, image.grid_h,
                        image.grid_w,   static_cast<int64_t>(at), {}};
      piece.bytes.assign(image.rgb.data() + at, image.rgb.data() + at + n);
      self->send(s.journal, std::move(piece));
    }
  }
  self->send(s.journal, images_sent{s.turn, ranks});
}

void refuse(request_pointer self, const api_error& why);

// The ranks are new, or the turn is: pixels are kept until they were sent once, after that they are made again.
void give_images(request_pointer self, const images_wanted& w) {
  auto& s = self->state;
  if (!s.images.empty()) return send_images(self, std::exchange(s.images, {}), w.ranks);
  s.wanted_ranks = w.ranks;
  self->send(s.prepare, turn_prepare{s.source, true});
}

void give_again(request_pointer self, turn_prepared& p) {
  auto& s = self->state;
  if (s.wanted_ranks == 0) return;
  if (p.failure.status != 0) {
    self->send(s.journal, turn_failed{s.turn, p.failure});
    return;
  }
  send_images(self, std::move(p.images), std::exchange(s.wanted_ranks, 0));
}

turn_open to_open(const turn_prepared& p, turn_id turn, std::shared_ptr<turn_sink> sink) {
  const auto& r = p.request;
  turn_open open;
  open.turn = turn;
  open.sink = std::move(sink);
  open.start = p.start;
  open.raw = !r.is_chat;
  open.tools_active = r.is_chat && !r.chat.tools.empty() && r.chat.choice != tool_choice::none;
  open.named_tool = r.chat.choice == tool_choice::named;
  open.parallel_tool_calls = r.chat.parallel_tool_calls;
  open.skip_special_tokens = r.skip_special_tokens;
  open.include_stop = r.include_stop_in_output;
  open.min_tokens = r.sampling.min_tokens;
  open.tools = r.chat.tools;
  open.stop = r.stop;
  return open;
}

// Opens the turn at fan_out before the scheduler can know of it, so that no token finds it closed.
void start(request_pointer self, turn_prepared& p) {
  auto& s = self->state;
  if (s.at != request_state::stage::preparing) return give_again(self, p);
  if (p.failure.status != 0) return refuse(self, p.failure);
  if (s.numbers->now == phase::failed)
    return refuse(self, {503, "ServiceUnavailableError", "The engine has failed.", {}, 30});
  const auto& r = p.request;
  if (p.prompts.size() * static_cast<uint64_t>(r.n) > max_choices)
    return refuse(self, {400, "BadRequestError", "Too many choices.", "n", 0});
  auto open = to_open(p, s.turn, s.sink);
  turn_admit admit{s.turn, {}};
  for (auto& prompt : p.prompts) {
    s.n_prompt += static_cast<int64_t>(prompt.ids.size());
    open.prompt_text += prompt.rendered;
    if (r.wants_prompt_ids) open.prompt_ids.insert(open.prompt_ids.end(), prompt.ids.begin(), prompt.ids.end());
    for (int32_t i = 0; i < r.n; ++i) {
      const auto choice = static_cast<int32_t>(admit.sequences.size());
      auto& q = admit.sequences.emplace_back();
      q.turn = s.turn;
      q.id = sequence_id{static_cast<uint64_t>(s.turn) * max_choices + static_cast<uint64_t>(choice)};
      q.priority = r.priority;
      q.prompt = i + 1 < r.n ? prompt.ids : std::move(prompt.ids);
      q.images = prompt.images;
      q.max_tokens = prompt.max_tokens;
      q.sampling = r.sampling;
      q.sampling.choice = choice;
      q.cache_salt = r.cache_salt;
      q.shares_prompt = i > 0;
      open.sequences.push_back({q.id, choice, prompt.text});
    }
  }
  open.prompt_tokens = s.n_prompt;
  for (const auto& q : admit.sequences)
    if (!q.images.empty()) s.image_owners.push_back(q.id);
  if (!s.image_owners.empty()) {
    s.images = std::move(p.images);
    s.source = std::move(p.request);
  }
  s.at = request_state::stage::queueing;
  s.opened = self->clock().now();
  self->send(s.journal, turn_begin{std::move(open), std::move(admit)});
}

void pass_deadline(request_pointer self) {
  auto& s = self->state;
  const api_error late{408, "RequestTimeoutError", "The request took longer than this server allows.", {}, 0};
  if (s.at == request_state::stage::preparing) return refuse(self, late);
  self->send(s.journal, turn_failed{s.turn, late});
}

timed_request::behavior_type request_behavior(request_pointer self, front parts, chat_request request,
                                              std::shared_ptr<turn_sink> sink) {
  guard(self);
  self->set_default_handler(caf::drop); // an answer may cross the end
  auto& s = self->state;
  s.turn = request.turn;
  s.id = request.id;
  s.asked_tokens = std::max<int64_t>(request.max_tokens, 0);
  s.asked_choices = request.n;
  s.sink = std::move(sink);
  s.journal = parts.journal;
  s.prepare = parts.prepare;
  s.numbers = parts.numbers;
  s.born = self->clock().now();
  ++s.numbers->turns;
  if (parts.config.request_timeout_s > 0)
    self->delayed_send(self, std::chrono::seconds(parts.config.request_timeout_s), due_atom_v);
  self->send(s.prepare, turn_prepare{std::move(request)});
  return {
      [=](turn_prepared& p) { start(self, p); },
      [=](const turn_queued&) { self->state.at = request_state::stage::running; },
      [=](const turn_refused& r) {
        self->send(self->state.journal, client_gone{r.turn});
        refuse(self, r.why);
      },
      [=](const client_gone&) {
        auto& state = self->state;
        if (state.at == request_state::stage::preparing) {
          ++state.numbers->ended_abort;
          self->send(state.prepare, client_gone{state.turn});
          return end_early(self, "abort");
        }
        // High only behind turn_queued: before it, the message must not overtake turn_begin.
        if (state.at == request_state::stage::running)
          self->send<caf::message_priority::high>(state.journal, client_gone{state.turn});
        else
          self->send(state.journal, client_gone{state.turn});
      },
      [=](const images_wanted& w) { give_images(self, w); },
      [=](const turn_ended& e) { end(self, e); },
      [=](due_atom) { pass_deadline(self); },
  };
}

} // namespace

request_actor spawn_request(caf::actor_system& system, const front& parts, chat_request request,
                            std::shared_ptr<turn_sink> sink) {
  return system.spawn(request_behavior, parts, std::move(request), std::move(sink));
}

} // namespace troupe
