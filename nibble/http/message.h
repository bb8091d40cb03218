// HTTP requests and responses as plain values, independent of any HTTP library.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace nibble {

// Headers in the order of the message. Names of received requests are lower case.
using HttpHeaders = std::vector<std::pair<std::string, std::string>>;

// Returns the first header with this name (lower case), or "" if there is none.
std::string_view header_of(const HttpHeaders& headers, std::string_view name);
// Converts ASCII letters to lower case.
std::string lower_case(std::string_view text);

struct HttpRequest {
    std::string method = "GET";
    std::string path = "/";  // decoded, without the query
    std::string host;        // from the target or the Host header; empty: HTTP/1.0 without one
    std::vector<std::pair<std::string, std::string>> query;
    HttpHeaders headers;
    std::string body;
    std::string peer;            // address of the client, for logs
    std::shared_ptr<void> held;  // memory accounting of the body; released with the request

    std::string_view header(std::string_view name) const { return header_of(headers, name); }
    std::string_view query_value(std::string_view name) const;
};

struct HttpResponse {
    int status = 200;
    HttpHeaders headers;  // without content-length, transfer-encoding and connection
    std::string body;
    std::shared_ptr<void> held;  // memory accounting of the body; released after the body was sent
};

std::string_view status_text(int status);  // "Not Found"; "Unknown" for other codes

// Reads path and query from "/a%20b?c=d" or "http://host/a%20b?c=d"; the latter's host replaces the Host header (RFC
// 9112, 3.2.2). Returns false for any other form or an invalid % escape.
bool read_target(std::string_view target, HttpRequest& request);
// Returns true if `host` is valid in a Host header: "name", "name:80", "127.0.0.1", "[::1]:8000".
bool is_host(std::string_view host);
// Returns the name or address of a host in lower case, without port, brackets and trailing dot.
std::string host_name(std::string_view host);

}  // namespace nibble
