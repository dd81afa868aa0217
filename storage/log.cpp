// Sets up the one logger of the process.
#include "storage/log.h"

#include <spdlog/sinks/stdout_sinks.h>

#include <array>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>

namespace troupe {
namespace {

struct named_level {
  std::string_view name;
  spdlog::level::level_enum level;
};

constexpr std::array<named_level, 6> levels = {{{"trace", spdlog::level::trace},
                                                {"debug", spdlog::level::debug},
                                                {"info", spdlog::level::info},
                                                {"warn", spdlog::level::warn},
                                                {"error", spdlog::level::err},
                                                {"off", spdlog::level::off}}};

} // namespace

void start_log(std::string_view level) {
  for (const named_level& l : levels) {
    if (l.name != level) continue;
    auto logger = std::make_shared<spdlog::logger>("troupe", std::make_shared<spdlog::sinks::stderr_sink_mt>());
    logger->set_pattern("%Y-%m-%d %H:%M:%S.%e %l %v");
    logger->set_level(l.level);
    logger->flush_on(spdlog::level::warn);
    spdlog::set_default_logger(std::move(logger));
    return;
  }
  throw std::invalid_argument("log level '" + std::string(level) +
                              "', expected trace, debug, info, warn, error or off");
}

} // namespace troupe
