// HTTP requests and responses as plain values. Knows of no library.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace nibble {

// In the order of the message. Names of requests that were read are lower case.
using HttpHeaders = std::vector<std::pair<std::string, std::string>>;

// The first header of this name (lower case); empty: there is none.
std::string_view header_of(const HttpHeaders& headers, std::string_view name);
// Its name in lower case, ASCII.
std::string lower_case(std::string_view text);

struct HttpRequest {
    std::string method = "GET";
    std::string path = "/";  // decoded, without the query
    std::string host;        // of the target or of the Host header; empty: HTTP/1.0 without one
    std::vector<std::pair<std::string, std::string>> query;
    HttpHeaders headers;
    std::string body;
    std::string peer;            // address of the client, for logs
    std::shared_ptr<void> held;  // what the server counts of the body; released with the request

    std::string_view header(std::string_view name) const { return header_of(headers, name); }
    std::string_view query_value(std::string_view name) const;
};

struct HttpResponse {
    int status = 200;
    HttpHeaders headers;  // without content-length, transfer-encoding and connection
    std::string body;
    std::shared_ptr<void> held;  // what the server counts of the body; released when the body was sent
};

std::string_view status_text(int status);  // "Not Found"; "Unknown" for codes not known here

// Path and query of "/a%20b?c=d", and of "http://host/a%20b?c=d" (RFC 9112, 3.2.2), whose host replaces the header's.
// False: neither, or a wrong % sign.
bool read_target(std::string_view target, HttpRequest& request);
// "name", "name:80", "127.0.0.1", "[::1]:8000": what may stand in a Host header.
bool is_host(std::string_view host);
// Its name or address without the port, in lower case, without brackets and without a dot at the end.
std::string host_name(std::string_view host);

}  // namespace nibble
