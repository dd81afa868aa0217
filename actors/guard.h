// What every actor sets first: an exception ends it with a reason that its monitors can read, and is logged once.
#pragma once

#include "storage/log.h"

#include <caf/error.hpp>
#include <caf/message.hpp>
#include <caf/sec.hpp>

#include <exception>
#include <string>

namespace troupe {

inline caf::error broken(std::string why) { return caf::make_error(caf::sec::runtime_error, std::move(why)); }

template <class self_pointer> void guard(self_pointer self) {
  self->set_exception_handler([who = std::string(self->name())](std::exception_ptr& thrown) -> caf::error {
    try {
      std::rethrow_exception(thrown);
    } catch (const std::exception& e) {
      spdlog::error("{}: {}", who, e.what());
      return broken(e.what());
    } catch (...) { return broken("unknown exception"); }
  });
}

} // namespace troupe
