// Who may ask: keys, and what keeps web pages of other sites away from a server without keys.
#pragma once

#include "server/api_error.h"
#include "server/model_server.h"

#include <optional>

namespace nibble {

// Why a request is not answered; none: it may ask.
//
// A server without keys is open to whoever reaches its port, and a browser reaches it for every page that it shows. So
// Host has to be an address, localhost or a name that the server was given (a page whose own name is resolved to this
// machine sends that name: DNS rebinding), and Origin, if there is one, has to be the server's own page or an allowed
// one.
std::optional<ApiError> access_error(const HttpRequest& request, const ServerOptions& options);

}  // namespace nibble
