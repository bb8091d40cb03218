// Where a server listens and a client connects: host and port, or the path of a unix socket.
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
    std::string unix_path;  // not empty: instead of host and port
    bool operator==(const HttpAddress&) const = default;
};

std::string to_text(const HttpAddress& address);  // "127.0.0.1:8000", "[::1]:8000", "unix:/run/x"

// "http://host:port/base" or "unix:/path" or "host:port". Error: https (a proxy's business), no port in range.
struct HttpUrl {
    HttpAddress address;
    std::string base;  // "/v1" of http://host/v1/; without a slash at the end
};
Result<HttpUrl> parse_url(std::string_view url);

// A socket that listens, not blocking, close-on-exec; port 0 is replaced by the one that the system chose. The file of
// a unix socket that nobody listens at is replaced; any other file stays. Error: the system's, with the address.
Result<int> listen_at(HttpAddress& address);

// The file of a unix socket as it was when its server began to listen.
struct SocketFile {
    std::string path;
    uint64_t device = 0, inode = 0;
    // Removes the file, unless another one has taken its place. Call it while the socket still listens: its inode then
    // belongs to no other file.
    void remove() const;
};
Result<SocketFile> socket_file(const std::string& path);
// A connected socket, blocking, close-on-exec, without Nagle's delay.
Result<int> connect_to(const HttpAddress& address, std::chrono::milliseconds patience);

}  // namespace nibble
