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
};

std::string_view status_text(int status);  // "Not Found"; "Unknown" for codes not known here

// Path and query of "/a%20b?c=d". False: not an absolute path, or a wrong % sign.
bool read_target(std::string_view target, std::string& path, std::vector<std::pair<std::string, std::string>>& query);

}  // namespace nibble
