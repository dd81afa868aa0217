// Every setting once. A new setting is a member of `settings` and one line here; etc/troupe.toml is made from this.
#include "actors/config_table.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

namespace troupe {

namespace {

constexpr int64_t mib = int64_t{1} << 20;
constexpr int64_t kib = int64_t{1} << 10;

// clang-format off
const setting table[] = {
    {"host", &settings::host, "Address to listen on.", 0, 0, {}, 1, false, "Serving"},
    {"port", &settings::port, "Port to listen on; 0 takes any free one and prints it.", 0, 65535},
    {"model", &settings::model, "Folder of the checkpoint; empty: the tiny model shipped in the tree."},
    {"served_names", &settings::served_names, "Names clients may ask for; empty: the folder's name."},
    {"api_key", &settings::api_keys, "Keys a client may present; empty: none is asked for. The flag may be repeated.", 0, 0, {}, 1, true},
    {"backend", &settings::backend, "host and cuda compute; auto is cuda where a device answers; null emits a fixed text, for load tests.", 0, 0, "auto|host|cuda|null"},
    {"ranks", &settings::ranks, "Tensor-parallel ranks in this process.", 1, 64},
    {"threads", &settings::threads, "Compute threads of all ranks together; 0: as many as there are cores.", 0, 1024},
    {"io_threads", &settings::io_threads, "Threads that serve sockets.", 1, 64},
    {"cuda_graph_rows", &settings::cuda_graph_rows, "Rows up to which a CUDA device replays decode steps from graphs captured at the start; 0: none.", 0, 64},

    {"max_running", &settings::max_running, "Sequences that advance together in one step.", 1, 4096, {}, 1, false, "Limits"},
    {"max_queue", &settings::max_queue, "Requests that may wait; one more is answered 429.", 0, 1 << 20},
    {"max_queue_wait", &settings::max_queue_wait_s, "Seconds a request may wait before it starts, then 429; 0: any time, and a stream opens when it is queued.", 0, 604800},
    {"max_connections", &settings::max_connections, "Open connections; one more is answered 503 and closed.", 1, 1 << 20},
    {"max_context", &settings::max_context, "Tokens of prompt and answer together; 0: what the model says.", 0, 1 << 30},
    {"chunk_tokens", &settings::chunk_tokens, "Tokens of prompts and answers in one step. A CUDA device has 256 KB of scratch for each and 112 MB, 512 to 2,304 MB in all.", 1, 65536},
    {"max_gap", &settings::max_gap_ms, "Milliseconds between two tokens of a stream that prompts beside it may cause.", 1, 600000},
    {"overcommit", &settings::overcommit, "Start a request before all its max_tokens have room; when room runs out, the youngest of the lowest class waits and goes on later."},
    {"kv_memory_mb", &settings::kv_memory_bytes, "MiB for the KV cache and the state of sequences.", 1, 1 << 24, {}, mib},
    {"snapshot_memory_mb", &settings::snapshot_memory_bytes, "MiB on each rank for the prefix cache's snapshots of window state; 0 holds none.", 0, 1 << 24, {}, mib},
    {"snapshot_interval", &settings::snapshot_interval, "Tokens between snapshots along a sequence; 0: only at ends and forks of prompts.", 0, 1 << 30},
    {"host_cache_mb", &settings::host_cache_bytes, "MiB on each rank for the prefix cache's blocks that left the device; 0: they are let go.", 0, 1 << 24, {}, mib},
    {"disk_cache_dir", &settings::disk_cache_dir, "Folder where the prefix cache outlives a restart; empty: none. What comes back from it goes through host_cache_mb."},
    {"disk_cache_mb", &settings::disk_cache_bytes, "MiB on disk for each rank.", 1, 1 << 30, {}, mib},
    {"disk_cache_min_tokens", &settings::disk_cache_min_tokens, "Tokens of the shortest prefix that goes to disk.", 1, 1 << 30},
    {"disk_write_mb_per_hour", &settings::disk_write_bytes_per_hour, "MiB written on each rank in an hour at most.", 1, 1 << 30, {}, mib},
    {"max_n", &settings::max_n, "Choices (n) of one request.", 1, 65536},
    {"max_images", &settings::max_images, "Images of one request.", 0, 4096},
    {"max_body_mb", &settings::max_body_bytes, "MiB of one request's body; more is answered 413.", 1, 1 << 16, {}, mib},
    {"max_bodies_mb", &settings::max_bodies_bytes, "MiB of all bodies being read or prepared; beyond it 503.", 1, 1 << 20, {}, mib},
    {"max_image_mb", &settings::max_image_bytes, "MiB of one encoded image.", 1, 1 << 12, {}, mib},
    {"outbox_kb", &settings::outbox_bytes, "KiB a slow reader may leave unread before its sequences pause.", 4, 1 << 20, {}, kib},
    {"read_timeout", &settings::read_timeout_s, "Seconds without progress while a request is read; then 408.", 1, 86400},
    {"send_timeout", &settings::send_timeout_s, "Seconds a client may leave its stream unread; then it is dropped.", 1, 86400},
    {"drain_timeout", &settings::drain_timeout_s, "Seconds that running requests have when the server is told to stop.", 0, 86400},
    {"request_timeout", &settings::request_timeout_s, "Seconds a request may take; 0: any time.", 0, 604800},
    {"half_close_grace", &settings::half_close_grace_s, "Seconds that a client which ends its sending side is taken to be still reading; 0: it has gone.", 0, 86400},
    {"ping_interval", &settings::ping_interval_s, "Seconds between comment lines on a stream that says nothing.", 1, 86400},
    {"clamp_max_tokens", &settings::clamp_max_tokens, "Shorten max_tokens to what the context leaves instead of answering 400."},

    {"default_thinking", &settings::default_thinking, "Thinking when a request does not say.", 0, 0, {}, 1, false, "Chat"},
    {"effort_table", &settings::effort_table, "Numbers behind the names of reasoning_effort.", 0, 0, "official|vllm0909"},
    {"text_specials", &settings::text_specials, "parse: special tokens in a client's text count; plain: they are text.", 0, 0, "parse|plain"},
    {"image_marker_text", &settings::image_marker_text, "The image marker in a client's text: 400, or written with spaces.", 0, 0, "reject|quote"},
    {"reasoning_field", &settings::reasoning_field, "Field of answers that holds the reasoning.", 0, 0, "both|reasoning_content|reasoning"},
    {"response_format_hint", &settings::response_format_hint, "Put response_format into the prompt as a hint."},
    {"suppress_reserved", &settings::suppress_reserved, "Never sample reserved and placeholder tokens."},
    {"enable_task_field", &settings::enable_task_field, "Accept the task field of messages."},
    {"strict_openai", &settings::strict_openai, "Refuse what OpenAI refuses and others accept, such as an empty tools list."},
    {"enable_render", &settings::enable_render, "Serve /v1/chat/completions/render (--disable-render turns it off)."},
    {"error_style", &settings::error_style, "Type and code of error bodies.", 0, 0, "vllm|openai"},
    {"allowed_origins", &settings::allowed_origins, "Origins a browser may call from; empty: local ones, any with a key."},

    {"prefill", &settings::prefill, "exact: all layers see the whole prompt; tail: the upper ones its end only.", 0, 0, "exact|tail", 1, false, "Engine"},
    {"tail_tokens", &settings::tail_tokens, "Tokens of that end.", 1, 1 << 30},
    {"spec", &settings::spec, "dspark: draft tokens are guessed and verified, with the same output; none: no drafter is loaded.", 0, 0, "dspark|none"},
    {"draft_tokens", &settings::draft_tokens, "Draft tokens verified in one step of a sequence at most; the model's block is the limit.", 0, 16},
    {"draft_depth", &settings::draft_depth, "adaptive: as many drafts as pay by measured step times; fixed: draft_tokens always.", 0, 0, "adaptive|fixed"},
    {"engram_cache_mb", &settings::engram_cache_bytes, "MiB: side tables up to this size are held in memory.", 0, 1 << 24, {}, mib},
    {"null_tokens_per_s", &settings::null_tokens_per_s, "Tokens a second of each stream with --backend null; 0: no pause.", 0, 1e9},
    {"null_stamps", &settings::null_stamps, "With --backend null: each eight tokens of a stream spell the time they began at."},

    {"log_level", &settings::log_level, "What the log shows.", 0, 0, "trace|debug|info|warn|error|off", 1, false, "Log"},
};

const profile_value profiles[] = {
    {"low-memory", "max_running", "8"},    {"low-memory", "chunk_tokens", "128"},
    {"low-memory", "kv_memory_mb", "256"}, {"low-memory", "engram_cache_mb", "0"},
    {"throughput", "max_running", "256"},  {"throughput", "chunk_tokens", "2048"},
    {"throughput", "max_queue", "8192"},
};
// clang-format on

std::string normal(std::string_view key) {
  std::string out(key);
  std::replace(out.begin(), out.end(), '-', '_');
  std::transform(out.begin(), out.end(), out.begin(), [](char c) { return c >= 'A' && c <= 'Z' ? c + 32 : c; });
  return out;
}

size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t swap = diagonal + (a[i - 1] != b[j - 1]);
      diagonal = row[j];
      row[j] = std::min({swap, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row[b.size()];
}

std::string range_text(const setting& s, const char* what) {
  const auto number = [](double x) {
    char text[32];
    const auto end = std::to_chars(text, text + sizeof text, x, std::chars_format::fixed).ptr;
    return std::string(text, end);
  };
  return std::string(what) + " from " + number(s.low) + " to " + number(s.high);
}

template <class number> bool parse_number(std::string_view text, number& out) {
  if (!text.empty() && text[0] == '+') text.remove_prefix(1);
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  return error == std::errc{} && end == text.data() + text.size() && !text.empty();
}

std::string quote(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  return out + '"';
}

struct assigner {
  settings& to;
  const setting& s;
  const std::vector<std::string>& items;

  const std::string* one() const { return items.size() == 1 ? &items.front() : nullptr; }
  std::string operator()(bool settings::*place) const {
    const auto* text = one();
    const auto is = [&](std::initializer_list<std::string_view> words) {
      return text && std::find(words.begin(), words.end(), *text) != words.end();
    };
    if (is({"true", "on", "yes", "1"}))
      to.*place = true;
    else if (is({"false", "off", "no", "0"}))
      to.*place = false;
    else
      return "true or false";
    return {};
  }
  template <class integer> std::string whole(integer settings::*place) const {
    std::string digits = one() ? *one() : std::string();
    std::erase(digits, '_');
    int64_t value = 0;
    if (!parse_number(std::string_view(digits), value) || static_cast<double>(value) < s.low ||
        static_cast<double>(value) > s.high)
      return range_text(s, "a whole number");
    to.*place = static_cast<integer>(value * s.unit);
    return {};
  }
  std::string operator()(int32_t settings::*place) const { return whole(place); }
  std::string operator()(int64_t settings::*place) const { return whole(place); }
  std::string operator()(double settings::*place) const {
    double value = 0;
    if (!one() || !parse_number(std::string_view(*one()), value) || !(value >= s.low && value <= s.high))
      return range_text(s, "a number");
    to.*place = value;
    return {};
  }
  std::string operator()(std::string settings::*place) const {
    if (!one()) return "one text";
    const std::string among = "|" + std::string(s.choices) + "|";
    if (!s.choices.empty() && (one()->empty() || among.find("|" + *one() + "|") == among.npos))
      return "one of " + std::string(s.choices);
    to.*place = *one();
    return {};
  }
  std::string operator()(std::vector<std::string> settings::*place) const {
    if (std::any_of(items.begin(), items.end(), [](const std::string& i) { return i.empty(); }))
      return "a list of texts that are not empty";
    to.*place = items;
    return {};
  }
};

struct printer {
  const settings& from;
  const setting& s;
  std::string operator()(bool settings::*place) const { return from.*place ? "true" : "false"; }
  std::string operator()(int32_t settings::*place) const { return std::to_string(from.*place / s.unit); }
  std::string operator()(int64_t settings::*place) const { return std::to_string(from.*place / s.unit); }
  std::string operator()(double settings::*place) const {
    char text[64];
    const auto end = std::to_chars(text, text + sizeof text, from.*place).ptr;
    return {text, end};
  }
  std::string operator()(std::string settings::*place) const { return quote(from.*place); }
  std::string operator()(std::vector<std::string> settings::*place) const {
    std::string out = "[";
    for (const auto& item : from.*place) out += (out.size() > 1 ? ", " : "") + quote(item);
    return out + "]";
  }
};

} // namespace

std::span<const setting> settings_table() { return table; }
std::span<const profile_value> profile_table() { return profiles; }

const setting* find_setting(std::string_view key) {
  const std::string wanted = normal(key);
  const auto found =
      std::find_if(std::begin(table), std::end(table), [&](const setting& s) { return s.key == wanted; });
  return found == std::end(table) ? nullptr : found;
}

std::string_view nearest_key(std::string_view key) {
  const std::string wanted = normal(key);
  std::string_view best = "profile";
  size_t distance = edit_distance(wanted, best);
  for (const auto& s : table)
    if (const size_t d = edit_distance(wanted, s.key); d < distance) {
      distance = d;
      best = s.key;
    }
  return best;
}

std::string assign(settings& to, const setting& s, const std::vector<std::string>& items) {
  return std::visit(assigner{to, s, items}, s.place);
}

std::string print(const settings& from, const setting& s) { return std::visit(printer{from, s}, s.place); }

} // namespace troupe
