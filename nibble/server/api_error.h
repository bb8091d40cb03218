// What went wrong with a request, and how clients of each API expect to be told.
#pragma once

#include "base/error.h"
#include "base/json.h"
#include "http/message.h"

#include <string>
#include <string_view>

namespace nibble {

enum class ApiStyle : uint8_t { openai, anthropic };

struct ApiError {
    int status = 400;
    std::string message;
    std::string param;         // the field that is to blame; empty: none
    std::string code;          // OpenAI's word for it; empty: the status
    double retry_seconds = 0;  // Retry-After, where > 0
    std::string allow;         // Allow, where not empty
};

// A message may quote the request: this much of it is said in answers and in the log.
inline constexpr size_t most_quoted = 256;

// Of a request whose deadline has passed.
inline ApiError late_error() { return {.status = 504, .message = "the request took longer than its time"}; }

// {"error": {"message", "type", "param", "code"}} as vLLM has it; for Anthropic {"type": "error", "error": {...}}.
Json error_json(const ApiError& error, ApiStyle style);
// "BadRequestError" and its like, as OpenAI and vLLM have them.
std::string_view openai_type(int status);
HttpResponse error_response_of(const ApiError& error, ApiStyle style);
ApiStyle style_of_path(std::string_view path);

// JSON as bodies have it: one line, bytes that are not UTF-8 replaced.
std::string body_text(const Json& json);
HttpResponse json_response(const Json& json, int status = 200);

}  // namespace nibble
