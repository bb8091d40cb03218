#include "http/framing.h"

#include <algorithm>

namespace nibble {
namespace {

std::vector<std::string_view> values_of(const HttpHeaders& headers, std::string_view name) {
    std::vector<std::string_view> values;
    for (const auto& [key, value] : headers)
        if (key == name) values.emplace_back(value);
    return values;
}

std::string_view trimmed(std::string_view text) {
    const size_t first = text.find_first_not_of(" \t");
    if (first == text.npos) return {};
    return text.substr(first, text.find_last_not_of(" \t") + 1 - first);
}

// Returns true if chunked is the last coding and occurs once. The end of the body is then known even if other codings
// are not.
bool ends_chunked(const std::vector<std::string_view>& codings) {
    std::string all;
    for (const std::string_view one : codings) (all += all.empty() ? "" : ",") += lower_case(one);
    const size_t comma = all.rfind(',');
    if (comma == all.npos || trimmed(std::string_view(all).substr(comma + 1)) != "chunked") return false;
    return all.find("chunked") > comma;
}

}  // namespace

std::optional<BrokenHead> broken_lines(std::string_view head, size_t from) {
    // The line end before `from` counts again, because the next line's first byte was not there before.
    for (size_t at = head.find('\n', from - std::min<size_t>(from, 1)); at != head.npos; at = head.find('\n', at + 1)) {
        if (at == 0 || head[at - 1] != '\r')
            return BrokenHead{400, "a line of the request's head ends with LF alone; lines of HTTP end with CR LF"};
        if (at + 1 < head.size() && (head[at + 1] == ' ' || head[at + 1] == '\t'))
            return BrokenHead{400, "a line of the request's head begins with white space; a field has one line"};
    }
    return std::nullopt;
}

std::optional<BrokenHead> settle_version(std::span<char> line) {
    const std::string_view text(line.data(), line.size());
    const std::string_view version = text.substr(text.rfind(' ') + 1);
    const auto digit = [&](size_t at) { return version[at] >= '0' && version[at] <= '9'; };
    if (version.size() != 8 || !version.starts_with("HTTP/") || !digit(5) || version[6] != '.' || !digit(7))
        return BrokenHead{400, "the request line does not end with a version of HTTP"};
    if (version[5] != '1') return BrokenHead{505, "the server speaks HTTP/1.1 and HTTP/1.0"};
    if (version[7] != '0') line.back() = '1';
    return std::nullopt;
}

std::optional<BrokenHead> broken_head(const HttpHeaders& headers, int minor) {
    const auto codings = values_of(headers, "transfer-encoding"), lengths = values_of(headers, "content-length"),
               hosts = values_of(headers, "host");
    if (!codings.empty() && minor == 0) return BrokenHead{400, "HTTP/1.0 has no Transfer-Encoding"};
    if (!codings.empty() && !lengths.empty())
        return BrokenHead{400, "the request has both Transfer-Encoding and Content-Length"};
    if (!codings.empty() && (codings.size() > 1 || lower_case(codings[0]) != "chunked"))
        return BrokenHead{ends_chunked(codings) ? 501 : 400, "the only Transfer-Encoding is 'chunked'"};
    if (lengths.size() > 1 || (!lengths.empty() && lengths[0].find_first_not_of("0123456789") != lengths[0].npos))
        return BrokenHead{400, "Content-Length is not one number"};
    if (hosts.size() > 1 || (hosts.empty() && minor > 0)) return BrokenHead{400, "the request needs one Host header"};
    if (!hosts.empty() && !is_host(hosts[0])) return BrokenHead{400, "Host is not a name or an address"};
    for (const std::string_view coding : values_of(headers, "content-encoding"))
        if (!trimmed(coding).empty() && lower_case(trimmed(coding)) != "identity")
            return BrokenHead{415, "bodies with a Content-Encoding are not read"};
    return std::nullopt;
}

}  // namespace nibble
