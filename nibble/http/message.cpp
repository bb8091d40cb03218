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

// Returns true if `c` may occur in a registered name or IPv4 address.
bool is_name_character(char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-' || c == '.' ||
           c == '_' || c == '~';
}

// `text` is "" or "?a=b&c".
bool read_query(std::string_view text, std::vector<std::pair<std::string, std::string>>& query) {
    for (std::string_view rest = text.substr(std::min<size_t>(1, text.size())); !rest.empty();) {
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

bool is_host(std::string_view host) {
    std::string_view port;
    if (host.starts_with('[')) {
        const size_t close = host.find(']');
        if (close == host.npos || close == 1) return false;
        for (const char c : host.substr(1, close - 1))
            if (hex_digit(c) < 0 && c != ':' && c != '.') return false;
        port = host.substr(close + 1);
        if (!port.empty() && port[0] != ':') return false;
    } else {
        const size_t colon = std::min(host.find(':'), host.size());
        for (const char c : host.substr(0, colon))
            if (!is_name_character(c)) return false;
        if (colon == 0) return host.empty();
        port = host.substr(colon);
    }
    return port.size() <= 6 && std::ranges::all_of(port.substr(std::min<size_t>(1, port.size())),
                                                   [](char c) { return c >= '0' && c <= '9'; });
}

std::string host_name(std::string_view host) {
    if (host.starts_with('[')) return lower_case(host.substr(1, host.find(']') - 1));
    host = host.substr(0, host.find(':'));
    if (host.ends_with('.')) host.remove_suffix(1);
    return lower_case(host);
}

bool read_target(std::string_view target, HttpRequest& request) {
    auto& query = request.query;
    query.clear();
    std::string_view path = target;
    for (const std::string_view scheme : {"http://", "https://"}) {
        if (lower_case(target.substr(0, scheme.size())) != scheme) continue;
        path.remove_prefix(scheme.size());
        const size_t end = std::min(path.find_first_of("/?"), path.size());
        if (end == 0 || !is_host(path.substr(0, end))) return false;
        request.host = std::string(path.substr(0, end));
        path.remove_prefix(end);
        if (path.empty() || path[0] == '?') {
            request.path = "/";
            return read_query(path, query);
        }
    }
    if (path.empty() || path[0] != '/' || path.find('#') != path.npos) return false;
    const size_t mark = std::min(path.find('?'), path.size());
    return percent_decoded(path.substr(0, mark), false, request.path) && read_query(path.substr(mark), query);
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
        case 415:
            return "Unsupported Media Type";
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
