// Rejects requests in which two programs on the route could see different bodies or hosts (request smuggling; RFC 9112,
// 3.2 and 6).
#pragma once

#include "http/message.h"

#include <optional>
#include <span>

namespace nibble {

struct BrokenHead {
    int status = 400;
    std::string_view why;
};
// Refuses a line that ends with LF alone, and a field of several lines, in the bytes of a head from `from` on. RFC
// 9112, 2.2 and 5.2, lets a recipient accept both; programs that do and programs that do not would find different heads
// in the same bytes.
std::optional<BrokenHead> broken_lines(std::string_view head, size_t from);
// Checks the version at the end of a request line. A request of HTTP/1.2 to HTTP/1.9 becomes one of HTTP/1.1, as RFC
// 9110, 2.5, asks of a recipient. `line` has no line end.
std::optional<BrokenHead> settle_version(std::span<char> line);

// Checks Transfer-Encoding, Content-Length, Host and Content-Encoding. `minor` is the 1 of HTTP/1.1. Returns nothing if
// the request is sound.
std::optional<BrokenHead> broken_head(const HttpHeaders& headers, int minor);

}  // namespace nibble
