// Access control: API keys, and protection of servers without keys against web pages of other sites.
#pragma once

#include "server/api_error.h"
#include "server/model_server.h"

#include <optional>

namespace nibble {

// Returns the error for a request that is not allowed; no value: it is allowed.
//
// A server without keys accepts any client that reaches its port, and a browser sends requests for every page it shows.
// The Host header must therefore be an address, localhost or a configured name. (A page whose own host name is resolved
// to this machine sends that name: DNS rebinding.) The Origin header, if present, must be the server's own page or an
// allowed origin.
std::optional<ApiError> access_error(const HttpRequest& request, const ServerOptions& options);

}  // namespace nibble
