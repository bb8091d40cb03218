// Requests that a server must not read, because two programs on the way may see different bodies or hosts in them
// (request smuggling; RFC 9112, 3.2 and 6).
#pragma once

#include "http/message.h"

#include <optional>

namespace nibble {

struct BrokenHead {
    int status = 400;
    std::string_view why;
};
// Checks Transfer-Encoding, Content-Length, Host and Content-Encoding. `minor`: the 1 of HTTP/1.1. None: the request is
// whole.
std::optional<BrokenHead> broken_head(const HttpHeaders& headers, int minor);

}  // namespace nibble
