// Every open turn: a parser and counts per choice, the sink its text goes to. The work of fan_out; knows no CAF.
#pragma once

#include "actors/counters.h"
#include "actors/messages.h"
#include "model/deepseek_v41/output_parser.h"
#include "model/model.h"

#include <chrono>
#include <memory>
#include <unordered_map>
#include <vector>

namespace troupe {

class turn_table {
public:
  using time = std::chrono::steady_clock::time_point;
  // What others must be told after a call.
  struct outcome {
    std::vector<sequence_id> stopped; // the scheduler still runs these: a stop string or the end of a tool block
    std::vector<turn_id> paused;      // their sink is full
    std::vector<turn_id> closed;      // their sink is gone; they stay until gone()
    std::vector<turn_ended> ended;
  };

  turn_table(std::shared_ptr<const text_side>, counters&);

  // False: the turn or one of its sequences is open already.
  bool open(turn_open&&, time now);
  // Admitted: opens the sink, writes echoed prompts. Before the first accept() of the turn.
  void queued(turn_id, outcome&);
  // Instead of open(): a turn of a fan_out that is gone. Tokens that its sink has had are not pushed again.
  void replay(turn_replayed&&, time now, outcome&);
  bool is_paused(turn_id) const;
  // Says something beside the answer: to one turn, or to all whose sink is open.
  void note(turn_id, std::string_view) const;
  void note_all(std::string_view) const;
  // One step: at most one push a turn, with the deltas of all its choices. Sequences that are not open are ignored.
  void accept(tokens_accepted&&, time now, outcome&);
  void resumed(turn_id);
  // The client left, or a deadline passed (the sink gets `why`). Its sequences are the scheduler's to end.
  void gone(turn_id, time now, outcome&);
  void fail(turn_id, const api_error& why, time now, outcome&);
  void fail_all(const api_error& why, time now, outcome&);

  size_t n_turns() const { return turns_.size(); }

private:
  struct choice {
    sequence_id id{};
    int32_t index = 0;
    std::unique_ptr<output_parser> parser;
    std::vector<sampled_token> held; // tokens that have not ridden with a delta yet
    int64_t n_tokens = 0;            // counted in the usage
    size_t n_ridden = 0;             // of them, those that ride with the push being built
    std::string echo, stop_string;
    bool has_ended = false, counted_first = false;
    bool is_closing = false; // the tool block is closed; the next token decides how the turn ends
  };
  // A delta before its views can be taken: `held` and `events` still grow.
  struct draft {
    turn_delta::kind what = turn_delta::kind::content;
    size_t choice = 0;
    size_t event = 0; // in turn::events; not for `end`
    size_t first_token = 0, n_tokens = 0;
    finish_cause cause = finish_cause::stop;
    int32_t stop_token = -1;
    turn_usage usage;
  };
  struct turn {
    turn_id id{};
    std::shared_ptr<turn_sink> sink; // lent by the front until the turn ends
    std::vector<choice> choices;
    size_t n_open = 0;
    bool tools_active = false, named_tool = false, is_paused = false, is_closed = false, is_touched = false;
    bool has_spoken = false; // first_at is set
    turn_usage usage;
    finish_cause worst = finish_cause::stop; // of the ended choices, for the log line
    time opened_at{}, first_at{}, last_at{};
    int64_t queue_us = 0;
    std::vector<int32_t> prompt_ids; // until the sink is open
    std::string prompt_text;         // the same
    std::vector<output_event> events;
    std::vector<draft> drafts;
  };
  struct place {
    turn* of = nullptr;
    size_t choice = 0;
  };

  void fetch(const tokens_accepted&);
  void take_step(turn&, size_t index, accepted_tokens&&, time now, outcome&);
  void hand_over(turn&, time now, outcome&); // what a step made of the turn
  void take(turn&, choice&, size_t index, accepted_tokens&&, outcome&);
  void flush(turn&, choice&, size_t index, output_parser::ending);
  static finish_cause spoken_cause(const turn&, const choice&);
  void end_block(turn&, choice&, size_t index, size_t first, end_cause, outcome&);
  void take_token(turn&, choice&, size_t index, size_t n_tokens);
  void end_choice(turn&, choice&, size_t index, finish_cause, int32_t stop_token);
  void push(turn&, outcome&);
  void count_ridden(turn&);
  static turn_progress::choice& progress(turn&, const choice&);
  void count_spoken(turn&, const choice&);
  void replay_choice(turn&, accepted_tokens&&, outcome&);
  void observe(turn&, size_t n_tokens, time now);
  void finish(turn&, std::string cause, time now, outcome&);
  static api_error to_error(const accepted_tokens&);
  static const char* to_text(finish_cause);

  std::shared_ptr<const text_side> text_; // shared with prepare and the connections
  counters& numbers_;
  std::unordered_map<turn_id, std::unique_ptr<turn>> turns_;
  std::unordered_map<sequence_id, place> sequences_;
  std::vector<turn*> touched_;
  std::vector<const turn*> coming_; // of fetch
  std::vector<turn_delta> deltas_;  // of the push being made
};

} // namespace troupe
