#include "http/message.h"

#include <algorithm>

namespace nibble {
namespace {

int hex_digit(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
}

bool percent_decoded(std::string_view text, bool plus_is_space, std::string& out) {
    out.clear();
    for (size_t i = 0; i < text.size(); ++i) {
        if (text[i] == '+' && plus_is_space) {
            out += ' ';
        } else if (text[i] != '%') {
            out += text[i];
        } else {
            const int high = i + 1 < text.size() ? hex_digit(text[i + 1]) : -1;
            const int low = i + 2 < text.size() ? hex_digit(text[i + 2]) : -1;
            if (high < 0 || low < 0) return false;
            out += static_cast<char>(high * 16 + low);
            i += 2;
        }
    }
    return true;
}

}  // namespace

std::string lower_case(std::string_view text) {
    std::string out(text);
    for (char& c : out)
        if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
    return out;
}

std::string_view header_of(const HttpHeaders& headers, std::string_view name) {
    const auto found = std::ranges::find_if(headers, [&](const auto& h) { return h.first == name; });
    return found == headers.end() ? std::string_view() : std::string_view(found->second);
}

std::string_view HttpRequest::query_value(std::string_view name) const { return header_of(query, name); }

bool read_target(std::string_view target, std::string& path, std::vector<std::pair<std::string, std::string>>& query) {
    query.clear();
    if (target.empty() || target[0] != '/') return false;
    const size_t mark = target.find('?');
    if (!percent_decoded(target.substr(0, mark), false, path)) return false;
    if (mark == target.npos) return true;
    for (std::string_view rest = target.substr(mark + 1); !rest.empty();) {
        const std::string_view one = rest.substr(0, rest.find('&'));
        rest.remove_prefix(std::min(one.size() + 1, rest.size()));
        if (one.empty()) continue;
        const size_t equals = one.find('=');
        auto& [name, value] = query.emplace_back();
        if (!percent_decoded(one.substr(0, equals), true, name)) return false;
        if (equals != one.npos && !percent_decoded(one.substr(equals + 1), true, value)) return false;
    }
    return true;
}

std::string_view status_text(int status) {
    switch (status) {
        case 200:
            return "OK";
        case 204:
            return "No Content";
        case 400:
            return "Bad Request";
        case 401:
            return "Unauthorized";
        case 403:
            return "Forbidden";
        case 404:
            return "Not Found";
        case 405:
            return "Method Not Allowed";
        case 408:
            return "Request Timeout";
        case 411:
            return "Length Required";
        case 413:
            return "Payload Too Large";
        case 417:
            return "Expectation Failed";
        case 429:
            return "Too Many Requests";
        case 431:
            return "Request Header Fields Too Large";
        case 500:
            return "Internal Server Error";
        case 501:
            return "Not Implemented";
        case 503:
            return "Service Unavailable";
        case 504:
            return "Gateway Timeout";
        case 505:
            return "HTTP Version Not Supported";
        default:
            return "Unknown";
    }
}

}  // namespace nibble
