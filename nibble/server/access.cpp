#include "server/access.h"

#include "base/utf8.h"

#include <arpa/inet.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace nibble {
namespace {

// Compares in a time that does not depend on how much of the key is correct.
bool equal_in_constant_time(std::string_view given, std::string_view key) {
    size_t different = given.size() ^ key.size();
    for (size_t i = 0; i < given.size(); ++i)
        different |= static_cast<unsigned char>(given[i] ^ key[key.empty() ? 0 : i % key.size()]);
    return different == 0;
}

bool has_key(const HttpRequest& request, const std::vector<std::string>& keys) {
    constexpr std::string_view scheme = "bearer ";
    std::string_view given = request.header("authorization");
    if (lower_case(given.substr(0, scheme.size())) == scheme) {
        given.remove_prefix(scheme.size());
        given.remove_prefix(std::min(given.find_first_not_of(' '), given.size()));
    } else {
        given = request.header("x-api-key");
    }
    bool found = false;
    for (const std::string& key : keys) found |= equal_in_constant_time(given, key);
    return found && !given.empty();
}

// Returns true if the path needs no key: probes, scrapers and the page itself.
bool open_to_all(std::string_view path) {
    static constexpr std::array<std::string_view, 7> paths{"/",        "/index.html", "/health",    "/ping",
                                                           "/version", "/metrics",    "/v1/metrics"};
    return path.starts_with("/v1/health/") || std::ranges::find(paths, path) != paths.end();
}

bool is_address(const std::string& name) {
    unsigned char bytes[16];
    return ::inet_pton(AF_INET, name.c_str(), bytes) == 1 || ::inet_pton(AF_INET6, name.c_str(), bytes) == 1;
}

bool is_known_host(const std::string& name, const ServerOptions& options) {
    if (name == "localhost" || name.ends_with(".localhost") || is_address(name)) return true;
    if (name == lower_case(options.address.host)) return true;
    return std::ranges::any_of(options.allowed_hosts,
                               [&](const std::string& host) { return host == "*" || host_name(host) == name; });
}

bool is_known_origin(std::string_view origin, const HttpRequest& request, const ServerOptions& options) {
    if (options.cors_origin == "*" || origin == options.cors_origin) return true;
    const size_t scheme = origin.find("://");
    return scheme != origin.npos && lower_case(origin.substr(scheme + 3)) == lower_case(request.host);
}

}  // namespace

std::optional<ApiError> access_error(const HttpRequest& request, const ServerOptions& options) {
    if (!options.api_keys.empty()) {
        if (open_to_all(request.path) || has_key(request, options.api_keys)) return std::nullopt;
        return ApiError{.status = 401, .message = "Unauthorized: a key is missing or wrong", .code = "invalid_api_key"};
    }
    // Browsers do not connect to unix sockets, and do not use HTTP/1.0, which has no Host.
    const std::string name = host_name(request.host);
    if (options.address.unix_path.empty() && !name.empty() && !is_known_host(name, options))
        return ApiError{.status = 403,
                        .message = fmt::format(
                            "the host name '{}' is not allowed; start the server with --allowed-host or --api-key",
                            printable(name, 100)),
                        .code = "unknown_host"};
    for (const auto& [header, origin] : request.headers)
        if (header == "origin" && !is_known_origin(origin, request, options))
            return ApiError{
                .status = 403,
                .message = fmt::format(
                    "requests from pages of '{}' are not allowed; start the server with --cors-origin or --api-key",
                    printable(origin, 100)),
                .code = "foreign_origin"};
    return std::nullopt;
}

}  // namespace nibble
