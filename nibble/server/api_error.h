// Errors of requests, in the form that clients of each API expect.
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
    std::string param;         // the field that caused the error; empty: none
    std::string code;          // OpenAI's error code; empty: the status
    double retry_seconds = 0;  // value of Retry-After, if > 0
    std::string allow;         // value of Allow, if not empty
};

// Most characters of the request that answers and log lines quote.
inline constexpr size_t most_quoted = 256;

// Returns the error for a request whose deadline has passed.
inline ApiError late_error() { return {.status = 504, .message = "the request exceeded its time limit"}; }

// Returns {"error": {"message", "type", "param", "code"}} as in vLLM; for Anthropic {"type": "error", "error": {...}}.
Json error_json(const ApiError& error, ApiStyle style);
// Returns "BadRequestError" or another error type of OpenAI and vLLM.
std::string_view openai_type(int status);
HttpResponse error_response_of(const ApiError& error, ApiStyle style);
ApiStyle style_of_path(std::string_view path);

// Returns JSON for a response body: one line, with bytes that are not UTF-8 replaced.
std::string body_text(const Json& json);
HttpResponse json_response(const Json& json, int status = 200);

}  // namespace nibble
