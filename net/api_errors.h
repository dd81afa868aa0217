// Error bodies in both styles, and what a status is called. api.md section 9.
#pragma once

#include "actors/turn_sink.h"

#include <string>
#include <string_view>

namespace troupe {

std::string_view reason_phrase(int status); // "Bad Request"
std::string_view error_type(int status);    // vLLM's: "BadRequestError"
api_error make_error(int status, std::string message, std::string param = {}, int32_t retry_after_s = 0);
// {"error":{"message","type","param","code"}}. `openai_style`: OpenAI's types and string codes instead of vLLM's.
void append_error_body(std::string& out, const api_error&, bool openai_style);
std::string error_body(const api_error&, bool openai_style);

} // namespace troupe
