#include "server/api_error.h"

#include "base/utf8.h"

#include <cmath>

namespace nibble {
namespace {

std::string_view anthropic_type(int status) {
    switch (status) {
        case 401:
            return "authentication_error";
        case 403:
            return "permission_error";
        case 404:
            return "not_found_error";
        case 413:
            return "request_too_large";
        case 429:
            return "rate_limit_error";
        case 503:
            return "overloaded_error";
        default:
            return status < 500 ? "invalid_request_error" : "api_error";
    }
}

}  // namespace

std::string_view openai_type(int status) {
    switch (status) {
        case 401:
            return "AuthenticationError";
        case 403:
            return "PermissionDeniedError";
        case 404:
            return "NotFoundError";
        case 429:
            return "RateLimitError";
        case 503:
            return "ServiceUnavailableError";
        case 504:
            return "TimeoutError";
        default:
            return status < 500 ? "BadRequestError" : "InternalServerError";
    }
}

Json error_json(const ApiError& whole, ApiStyle style) {
    ApiError e = whole;
    e.message = printable(e.message, most_quoted);
    e.param = printable(e.param, most_quoted);
    if (style == ApiStyle::anthropic)
        return {{"type", "error"}, {"error", {{"type", anthropic_type(e.status)}, {"message", e.message}}}};
    return {{"error",
             {{"message", e.message},
              {"type", openai_type(e.status)},
              {"param", e.param.empty() ? Json(nullptr) : Json(e.param)},
              {"code", e.code.empty() ? Json(e.status) : Json(e.code)}}}};
}

std::string body_text(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

HttpResponse json_response(const Json& json, int status) {
    return {.status = status, .headers = {{"Content-Type", "application/json"}}, .body = body_text(json)};
}

HttpResponse error_response_of(const ApiError& error, ApiStyle style) {
    HttpResponse response = json_response(error_json(error, style), error.status);
    if (error.retry_seconds > 0)
        response.headers.emplace_back("Retry-After",
                                      std::to_string(static_cast<int64_t>(std::ceil(error.retry_seconds))));
    if (!error.allow.empty()) response.headers.emplace_back("Allow", error.allow);
    return response;
}

ApiStyle style_of_path(std::string_view path) {
    return path.starts_with("/v1/messages") ? ApiStyle::anthropic : ApiStyle::openai;
}

}  // namespace nibble
