// Token ids become deltas: parsing, stop strings, finish causes, usage, one push a turn and step.
#include "actors/turn_table.h"

#include "actors/fetch_ahead.h"

#include <algorithm>
#include <utility>

namespace troupe {

namespace {

constexpr size_t n_sink_bytes = 256, n_parser_bytes = 256; // of each, those that every token needs

turn_delta::kind to_kind(output_event::kind k) {
  switch (k) {
  case output_event::kind::reasoning: return turn_delta::kind::reasoning;
  case output_event::kind::content: return turn_delta::kind::content;
  case output_event::kind::call: return turn_delta::kind::call;
  case output_event::kind::arguments: return turn_delta::kind::arguments;
  }
  return turn_delta::kind::content;
}

int64_t microseconds(std::chrono::steady_clock::duration d) {
  return std::chrono::duration_cast<std::chrono::microseconds>(d).count();
}

const char* error_type(int32_t status) {
  switch (status) { // api.md section 9
  case 400: return "BadRequestError";
  case 408: return "RequestTimeoutError";
  case 503: return "ServiceUnavailableError";
  default: return "InternalServerError";
  }
}

} // namespace

turn_table::turn_table(std::shared_ptr<const text_side> text, counters& numbers)
    : text_(std::move(text)), numbers_(numbers) {}

bool turn_table::open(turn_open&& o, time now) {
  if (turns_.count(o.turn)) return false;
  for (const auto& s : o.sequences)
    if (sequences_.count(s.id)) return false;
  auto t = std::make_unique<turn>();
  t->id = o.turn;
  t->sink = std::move(o.sink);
  t->tools_active = o.tools_active;
  t->named_tool = o.named_tool;
  t->usage.prompt_tokens = o.prompt_tokens;
  t->opened_at = now;
  t->n_open = o.sequences.size();
  t->prompt_ids = std::move(o.prompt_ids);
  t->prompt_text = std::move(o.prompt_text);
  parser_options options;
  options.start = o.start;
  options.tools_active = o.tools_active;
  options.tools = std::move(o.tools);
  options.skip_special_tokens = o.skip_special_tokens;
  options.parallel_tool_calls = o.parallel_tool_calls;
  options.stop = std::move(o.stop);
  options.include_stop = o.include_stop;
  options.min_tokens = o.min_tokens;
  options.raw = o.raw;
  for (size_t i = 0; i < o.sequences.size(); ++i) {
    auto& c = t->choices.emplace_back();
    c.id = o.sequences[i].id;
    c.index = o.sequences[i].choice;
    c.echo = std::move(o.sequences[i].echo);
    c.parser = text_->make_parser(options);
    sequences_[c.id] = {t.get(), i};
  }
  turns_.emplace(t->id, std::move(t));
  return true;
}

void turn_table::queued(turn_id id, outcome& out) {
  const auto found = turns_.find(id);
  if (found == turns_.end()) return;
  auto& t = *found->second;
  if (std::exchange(t.sink->sent.is_open, true)) return; // before a restart
  numbers_.prompt_tokens += t.usage.prompt_tokens;
  numbers_.prompt_size.observe(static_cast<double>(t.usage.prompt_tokens));
  if (!t.prompt_text.empty()) t.sink->show_prompt(t.prompt_text);
  t.sink->open(t.prompt_ids);
  t.prompt_ids = {};
  t.prompt_text = {};
  for (size_t i = 0; i < t.choices.size(); ++i) {
    auto& echo = t.choices[i].echo;
    if (echo.empty()) continue;
    t.drafts.push_back({turn_delta::kind::content, i, t.events.size(), 0, 0, finish_cause::stop, -1, t.usage});
    t.events.push_back({output_event::kind::content, std::move(echo), 0});
  }
  if (!t.drafts.empty()) push(t, out);
}

void turn_table::resumed(turn_id id) {
  if (const auto found = turns_.find(id); found != turns_.end()) found->second->is_paused = false;
}

const char* turn_table::to_text(finish_cause c) {
  return c == finish_cause::length ? "length" : c == finish_cause::tool_calls ? "tool_calls" : "stop";
}

api_error turn_table::to_error(const accepted_tokens& a) {
  const int32_t retry_after_s = a.status == 503 ? 5 : 0;
  return {a.status,
          error_type(a.status),
          a.status == 500 ? "The engine failed: " + a.failure : a.failure,
          {},
          retry_after_s};
}

// Turns the newest token of `held` (at n_tokens - 1) into events; it rides with the last delta it releases.
void turn_table::take_token(turn& t, choice& c, size_t index, size_t n_tokens) {
  const bool was_reasoning = c.parser->in_reasoning();
  const size_t before = t.events.size();
  c.parser->push(c.held[n_tokens - 1].id, t.events);
  ++t.usage.completion_tokens;
  ++c.n_tokens;
  if (was_reasoning && c.parser->in_reasoning()) ++t.usage.reasoning_tokens;
  size_t made = before;
  for (size_t e = before; e < t.events.size(); ++e) {
    auto& event = t.events[e];
    const auto kind = to_kind(event.what);
    auto* last = t.drafts.empty() ? nullptr : &t.drafts.back();
    if (last && last->choice == index && last->what == kind && kind != turn_delta::kind::call &&
        t.events[last->event].call_index == event.call_index) { // tokens of one step share a delta
      t.events[last->event].text += event.text;
    } else {
      if (made != e) t.events[made] = std::move(event);
      t.drafts.push_back({kind, index, made, c.n_ridden, 0, finish_cause::stop, -1, {}});
      ++made;
    }
    t.drafts.back().usage = t.usage;
  }
  if (t.events.size() != before) {
    auto& last = t.drafts.back();
    last.n_tokens += n_tokens - c.n_ridden;
    c.n_ridden = n_tokens;
  }
  t.events.resize(made);
}

void turn_table::end_choice(turn& t, choice& c, size_t index, finish_cause cause, int32_t stop_token) {
  if (const auto matched = c.parser->stop_match()) c.stop_string = *matched;
  t.drafts.push_back(
      {turn_delta::kind::end, index, 0, c.n_ridden, c.held.size() - c.n_ridden, cause, stop_token, t.usage});
  c.n_ridden = c.held.size();
  c.has_ended = true;
  --t.n_open;
  sequences_.erase(c.id);
  if (cause == finish_cause::length || t.worst == finish_cause::stop) t.worst = cause;
}

// Held text carries no token: what comes rides with the end.
void turn_table::flush(turn& t, choice& c, size_t index, output_parser::ending how) {
  const size_t before = t.events.size();
  c.parser->finish(how, t.events);
  for (size_t e = before; e < t.events.size(); ++e)
    t.drafts.push_back({to_kind(t.events[e].what), index, e, c.n_ridden, 0, finish_cause::stop, -1, t.usage});
}

finish_cause turn_table::spoken_cause(const turn& t, const choice& c) {
  return c.parser->n_calls() > 0 && t.tools_active && !t.named_tool ? finish_cause::tool_calls : finish_cause::stop;
}

// The tool block is closed. The end token right behind it belongs to the turn: it is what the next prompt of the
// conversation repeats (chat.md 2.8), and the step that makes it is in the ring already. Anything else is dropped.
void turn_table::end_block(turn& t, choice& c, size_t index, size_t first, end_cause end, outcome& out) {
  const bool has_end = end == end_cause::eos && c.held.size() == first + 1;
  if (has_end)
    ++t.usage.completion_tokens, ++c.n_tokens;
  else
    c.held.resize(first);
  if (end == end_cause::none) out.stopped.push_back(c.id);
  flush(t, c, index, output_parser::ending::stop);
  end_choice(t, c, index, spoken_cause(t, c), -1);
}

void turn_table::take(turn& t, choice& c, size_t index, accepted_tokens&& a, outcome& out) {
  if (!c.counted_first) {
    c.counted_first = true;
    t.usage.cached_tokens += a.cached_tokens;
    if (!std::exchange(progress(t, c).has_begun, true)) numbers_.cached_tokens += a.cached_tokens;
    t.queue_us = std::max(t.queue_us, a.queue_us);
  }
  const size_t first = c.held.size();
  c.held.insert(c.held.end(), std::make_move_iterator(a.tokens.begin()), std::make_move_iterator(a.tokens.end()));
  if (c.is_closing) {
    end_block(t, c, index, first, a.end, out);
    return;
  }
  const bool has_mute_end = a.end == end_cause::eos || a.end == end_cause::stop_token; // its last token makes no text
  const size_t n_spoken = c.held.size() - (has_mute_end && !a.tokens.empty() ? 1 : 0);
  for (size_t n = first + 1; n <= n_spoken; ++n) {
    take_token(t, c, index, n);
    if (!c.parser->done()) continue;
    if (!c.parser->stop_match()) {
      c.is_closing = n == c.held.size() && a.end == end_cause::none;
      if (!c.is_closing) end_block(t, c, index, n, a.end, out);
      return;
    }
    c.held.resize(n); // what came after the match was never said
    if (a.end == end_cause::none) out.stopped.push_back(c.id);
    flush(t, c, index, output_parser::ending::stop);
    end_choice(t, c, index, finish_cause::stop, -1);
    return;
  }
  if (a.end == end_cause::none) return;
  if (has_mute_end) ++t.usage.completion_tokens, ++c.n_tokens;
  const bool is_cut = a.end == end_cause::length;
  flush(t, c, index, is_cut ? output_parser::ending::length : output_parser::ending::stop);
  end_choice(t, c, index, is_cut ? finish_cause::length : spoken_cause(t, c),
             a.end == end_cause::stop_token ? c.held.back().id : -1);
}

void turn_table::push(turn& t, outcome& out) {
  deltas_.clear();
  for (const auto& d : t.drafts) {
    const auto& c = t.choices[d.choice];
    auto& delta = deltas_.emplace_back();
    delta.what = d.what;
    delta.choice = c.index;
    delta.cause = d.cause;
    delta.stop_token = d.stop_token;
    delta.usage = d.usage;
    delta.tokens = std::span(c.held).subspan(d.first_token, d.n_tokens);
    if (d.what == turn_delta::kind::end) {
      delta.stop_string = c.stop_string;
    } else {
      delta.text = t.events[d.event].text;
      delta.call_index = t.events[d.event].call_index;
    }
  }
  for (const auto& d : t.drafts) { // before the push: what a sink was given when it threw is never given again
    const auto& c = t.choices[d.choice];
    auto& sent = progress(t, c);
    sent.n_tokens += static_cast<int64_t>(d.n_tokens);
    if (d.what != turn_delta::kind::end || std::exchange(sent.has_ended, true)) continue;
    numbers_.parse_errors += static_cast<int64_t>(c.parser->n_parse_errors());
    numbers_.stray_markers += static_cast<int64_t>(c.parser->n_stray_markers());
  }
  const auto state = t.sink->push(deltas_);
  count_ridden(t);
  if (t.n_open == 0) return; // its end is on the way, whatever the sink says
  if (state == turn_sink::state::closed && !t.is_closed) {
    t.is_closed = true;
    ++numbers_.sink_closed;
    out.closed.push_back(t.id);
  } else if (state == turn_sink::state::full && !t.is_paused) {
    t.is_paused = true;
    ++numbers_.sink_full;
    out.paused.push_back(t.id);
  }
}

// The drafts are done with, and the tokens that rode with them.
void turn_table::count_ridden(turn& t) {
  for (const auto& d : t.drafts) {
    auto& c = t.choices[d.choice];
    c.held.erase(c.held.begin(), c.held.begin() + static_cast<std::ptrdiff_t>(std::exchange(c.n_ridden, 0)));
  }
  t.drafts.clear();
  t.events.clear();
}

void turn_table::observe(turn& t, size_t n_tokens, time now) {
  if (n_tokens == 0) return;
  if (!std::exchange(t.has_spoken, true)) {
    t.first_at = now;
  } else {
    numbers_.inter_token.observe(std::chrono::duration<double>(now - t.last_at).count() /
                                 static_cast<double>(n_tokens));
  }
  t.last_at = now;
}

void turn_table::finish(turn& t, std::string cause, time now, outcome& out) {
  auto& e = out.ended.emplace_back();
  e.turn = t.id;
  e.usage = t.usage;
  e.cause = std::move(cause);
  e.queue_us = t.queue_us;
  e.first_token_us = t.has_spoken ? microseconds(t.first_at - t.opened_at) : 0;
  e.decode_us = t.has_spoken ? microseconds(now - t.first_at) : 0;
  numbers_.generation_size.observe(static_cast<double>(t.usage.completion_tokens));
  int64_t longest = 0;
  for (const auto& c : t.choices) longest = std::max(longest, c.n_tokens);
  numbers_.longest_choice.observe(static_cast<double>(longest));
  if (longest > 1) // the first token belongs to the prefill
    numbers_.time_per_token.observe(std::chrono::duration<double>(t.last_at - t.first_at).count() /
                                    static_cast<double>(longest - 1));
  for (const auto& c : t.choices)
    if (!c.has_ended) sequences_.erase(c.id);
  turns_.erase(t.id);
}

void turn_table::take_step(turn& t, size_t index, accepted_tokens&& a, time now, outcome& out) {
  observe(t, a.tokens.size(), now);
  const int64_t n_drafts = a.n_drafts, n_accepted = a.n_accepted, before = t.usage.completion_tokens;
  take(t, t.choices[index], index, std::move(a), out);
  const int64_t n_spoken = t.usage.completion_tokens - before;
  count_spoken(t, t.choices[index]);
  if (n_drafts == 0) return;
  const int64_t n_kept = std::min(n_accepted, n_spoken); // a stop string may cut the run
  t.usage.accepted_drafts += n_kept;
  t.usage.rejected_drafts += n_drafts - n_kept;
  if (!t.drafts.empty()) t.drafts.back().usage = t.usage;
}

void turn_table::hand_over(turn& t, time now, outcome& out) {
  if (!t.drafts.empty()) push(t, out);
  if (t.n_open == 0) finish(t, to_text(t.worst), now, out);
}

// What the step will touch, level by level.
void turn_table::fetch(const tokens_accepted& step) {
  coming_.clear();
  for (const auto& a : step.sequences)
    if (const auto found = sequences_.find(a.id); found != sequences_.end()) {
      coming_.push_back(found->second.of);
      fetch_ahead(coming_.back(), sizeof(turn));
    }
  for (const auto* t : coming_) {
    fetch_ahead(t->choices.data(), sizeof(choice));
    fetch_ahead(t->sink.get(), n_sink_bytes);
    fetch_ahead(t->events.data(), sizeof(output_event));
    fetch_ahead(t->drafts.data(), sizeof(draft));
  }
  for (const auto* t : coming_) {
    fetch_ahead(t->choices[0].parser.get(), n_parser_bytes);
    fetch_ahead(t->choices[0].held.data(), sizeof(sampled_token));
  }
}

void turn_table::accept(tokens_accepted&& step, time now, outcome& out) {
  touched_.clear();
  fetch(step);
  for (auto& a : step.sequences) {
    const auto found = sequences_.find(a.id);
    if (found == sequences_.end()) continue; // ended here already
    auto& t = *found->second.of;
    if (t.is_closed) continue;
    if (a.end == end_cause::failed && !t.choices[found->second.choice].is_closing) {
      const auto error = to_error(a);
      for (const auto& c : t.choices)
        if (!c.has_ended && c.id != a.id) out.stopped.push_back(c.id);
      std::erase(touched_, &t);
      fail(t.id, error, now, out);
      continue;
    }
    take_step(t, found->second.choice, std::move(a), now, out);
    if (t.choices.size() == 1) { // it is written while the other turns are read
      hand_over(t, now, out);
      continue;
    }
    if (!t.is_touched) touched_.push_back(&t);
    t.is_touched = true;
  }
  for (auto* t : touched_) {
    t->is_touched = false;
    hand_over(*t, now, out);
  }
}

void turn_table::gone(turn_id id, time now, outcome& out) {
  if (const auto found = turns_.find(id); found != turns_.end()) finish(*found->second, "abort", now, out);
}

void turn_table::fail(turn_id id, const api_error& why, time now, outcome& out) {
  const auto found = turns_.find(id);
  if (found == turns_.end()) return;
  found->second->sink->fail(why);
  finish(*found->second, "error: " + why.message, now, out);
}

void turn_table::fail_all(const api_error& why, time now, outcome& out) {
  while (!turns_.empty()) fail(turns_.begin()->first, why, now, out);
}

} // namespace troupe
