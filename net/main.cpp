// The program: reads the configuration and hands over to a verb. Each verb's work is in a file of its own.
#include "actors/config.h"
#include "actors/system.h"
#include "model/deepseek_v41/checkpoint.h"
#include "model/deepseek_v41/synth.h"
#include "model/model.h"
#include "model/tokenizer.h"
#include "net/verbs.h"

#include <cstdio>
#include <exception>
#include <span>
#include <string>
#include <vector>

namespace {

constexpr int exit_failed = 1, exit_refused = 2;

void print_usage() {
  std::fputs("usage: troupe [VERB] [--KEY VALUE ...]\n\n"
             "  serve               serve a model over HTTP (the default); SIGTERM finishes what is in flight\n"
             "  smoke [URL]         ask a running server what 17*19 is, and check the answer\n"
             "  status [URL]        one screen about a running server\n"
             "  verify [FOLDER]     check a checkpoint's files, names, shapes and tokenizer, without its weights\n"
             "  synth FOLDER        make a checkpoint of random weights in the released model's shapes (flags below)\n"
             "  config show         every setting, its value and where it came from\n"
             "  --help, --version\n\n"
             "Settings come from defaults, a file (--config FILE or TROUPE_CONFIG), the environment (TROUPE_KEY) and\n"
             "flags, the later ones winning:\n\n",
             stdout);
  std::fputs(troupe::config_help().c_str(), stdout);
  std::fputs("\nFlags of synth:\n\n", stdout);
  std::fputs(troupe::deepseek_v41::synth_help().c_str(), stdout);
}

int run_verify(const std::string& folder) {
  const auto report = troupe::deepseek_v41::verify_checkpoint(folder);
  std::fputs(report.text().c_str(), stdout);
  if (!report.problems.empty()) return exit_refused;
  const auto text = troupe::load_text_side(folder); // reads tokenizer.json and checks itself; throws naming the file
  std::printf("tokenizer: %lld tokens\n", static_cast<long long>(text->words()->size()));
  return 0;
}

// Reads no settings: what it makes follows from its own arguments.
int run_synth(std::span<const std::string> arguments) {
  const auto options = troupe::deepseek_v41::parse_synth(arguments, troupe::shipped_model() + "/tokenizer.json");
  int shown = -1; // tenths of the way
  const auto report = troupe::deepseek_v41::make_synth(options, [&](uint64_t done, uint64_t all) {
    if (const int tenths = static_cast<int>(10 * done / all); tenths != shown)
      std::fprintf(stderr, "%d %%\n", 10 * (shown = tenths));
  });
  std::fputs(report.text.c_str(), stdout);
  return 0;
}

int run_verb(const troupe::loaded_config& config) {
  const auto& rest = config.rest;
  const std::string verb = rest.empty() ? "serve" : rest[0];
  const std::string operand = rest.size() > 1 ? rest[1] : "";
  const auto takes = [&](size_t n) {
    if (rest.size() > n + 1) throw std::runtime_error("'" + rest[n + 1] + "' is one argument too many for " + verb);
  };
  if (verb == "-h" || verb == "--help" || verb == "help") return print_usage(), 0;
  if (verb == "--version") return std::puts("troupe " TROUPE_VERSION), 0;
  if (verb == "serve") return takes(0), troupe::run_serve(config, TROUPE_VERSION);
  if (verb == "smoke") return takes(1), troupe::run_smoke(config.values, operand);
  if (verb == "status") return takes(1), troupe::run_status(config.values, operand);
  if (verb == "verify") {
    takes(1);
    const auto& set = config.values.model;
    return run_verify(!operand.empty() ? operand : !set.empty() ? set : troupe::shipped_model());
  }
  if (verb == "config" && operand == "show") return takes(1), std::fputs(config.show().c_str(), stdout), 0;
  throw std::runtime_error("'" + verb + (verb == "config" ? " " + operand : "") + "' is no verb; see troupe --help");
}

} // namespace

int main(int argc, char** argv, char** environment) {
  try {
    const std::vector<std::string> arguments(argv + 1, argv + argc);
    for (const auto& a : arguments)
      if (a == "-h" || a == "--help") return print_usage(), 0;
    if (!arguments.empty() && arguments[0] == "synth") return run_synth(std::span(arguments).subspan(1));
    return run_verb(troupe::load_config(arguments, environment));
  } catch (const std::exception& e) {
    std::fprintf(stderr, "troupe: %s\n", e.what());
    return exit_refused;
  } catch (...) {
    std::fputs("troupe: an unknown exception reached main\n", stderr);
    return exit_failed;
  }
}
