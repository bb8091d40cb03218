// Rejects requests in which two programs on the route could see different bodies or hosts (request smuggling; RFC 9112,
// 3.2 and 6).
#pragma once

#include "http/message.h"

#include <optional>

namespace nibble {

struct BrokenHead {
    int status = 400;
    std::string_view why;
};
// Checks Transfer-Encoding, Content-Length, Host and Content-Encoding. `minor` is the 1 of HTTP/1.1. Returns nothing if
// the request is sound.
std::optional<BrokenHead> broken_head(const HttpHeaders& headers, int minor);

}  // namespace nibble
