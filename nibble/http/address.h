// The address where a server listens and a client connects: host and port, or the path of a unix socket.
#pragma once

#include "base/error.h"

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

namespace nibble {

struct HttpAddress {
    std::string host = "127.0.0.1";
    uint16_t port = 0;
    std::string unix_path;  // if not empty, used instead of host and port
    bool operator==(const HttpAddress&) const = default;
};

std::string to_text(const HttpAddress& address);  // "127.0.0.1:8000", "[::1]:8000", "unix:/run/x"

// Parses "http://host:port/base", "unix:/path" or "host:port". Errors: https (needs a proxy), a missing or invalid
// port.
struct HttpUrl {
    HttpAddress address;
    std::string base;  // "/v1" for http://host/v1/; no trailing slash
};
Result<HttpUrl> parse_url(std::string_view url);

// Returns a listening socket, non-blocking, close-on-exec. Port 0 is replaced by the port that the system chose.
// Replaces the file of a unix socket without a listener; any other file stays. Error: the system's, with the address.
Result<int> listen_at(HttpAddress& address);

// Identity of a unix socket's file at the time when its server began to listen.
struct SocketFile {
    std::string path;
    uint64_t device = 0, inode = 0;
    // Removes the file unless another one has replaced it. Call it while the socket still listens: until then no other
    // file can have its inode.
    void remove() const;
};
Result<SocketFile> socket_file(const std::string& path);
// Returns a connected socket, blocking, close-on-exec, with Nagle's delay off.
Result<int> connect_to(const HttpAddress& address, std::chrono::milliseconds patience);

}  // namespace nibble
