#include "http/address.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <memory>

namespace nibble {
namespace {

struct AddressListFree {
    void operator()(addrinfo* list) const { ::freeaddrinfo(list); }
};
using AddressList = std::unique_ptr<addrinfo, AddressListFree>;

Result<AddressList> resolved(const HttpAddress& address, int flags) {
    addrinfo hints{};
    hints.ai_family = AF_UNSPEC;
    hints.ai_socktype = SOCK_STREAM;
    hints.ai_flags = flags | AI_NUMERICSERV;
    addrinfo* list = nullptr;
    const char* host = address.host.empty() ? nullptr : address.host.c_str();
    if (const int code = ::getaddrinfo(host, std::to_string(address.port).c_str(), &hints, &list); code != 0)
        return fail("{}: {}", to_text(address), ::gai_strerror(code));
    return AddressList(list);
}

Result<sockaddr_un> unix_address(const std::string& path) {
    sockaddr_un name{};
    name.sun_family = AF_UNIX;
    if (path.size() >= sizeof name.sun_path) return fail("{}: the path of a unix socket is too long", path);
    std::memcpy(name.sun_path, path.c_str(), path.size() + 1);
    return name;
}

Error system_error(const HttpAddress& address) { return fail("{}: {}", to_text(address), std::strerror(errno)); }

Error listen_error(const HttpAddress& address) {
    const char* const next_step = errno == EADDRINUSE      ? "; another program listens there: choose another port"
                                  : errno == EACCES        ? "; choose a port above 1023"
                                  : errno == EADDRNOTAVAIL ? "; this machine has no such address"
                                                           : "";
    return fail("{}: {}{}", to_text(address), std::strerror(errno), next_step);
}

// Serializes servers that start or end at sockets of one folder, so that a socket cannot change between its inspection
// and its removal.
class FolderLock {
public:
    explicit FolderLock(const std::filesystem::path& file) {
        const std::filesystem::path folder = file.has_parent_path() ? file.parent_path() : ".";
        fd_ = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (fd_ >= 0) ::flock(fd_, LOCK_EX);
    }
    FolderLock(const FolderLock&) = delete;
    FolderLock& operator=(const FolderLock&) = delete;
    ~FolderLock() {
        if (fd_ >= 0) ::close(fd_);
    }

private:
    int fd_ = -1;
};

bool is_socket(const std::string& path) {
    struct stat info {};
    return ::lstat(path.c_str(), &info) == 0 && S_ISSOCK(info.st_mode);
}

// A socket file of a killed server refuses connections. So does a regular file.
bool is_dead_socket(const std::string& path, const sockaddr_un& name) {
    if (!is_socket(path)) return false;
    const int probe = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (probe < 0) return false;
    const bool refused =
        ::connect(probe, reinterpret_cast<const sockaddr*>(&name), sizeof name) != 0 && errno == ECONNREFUSED;
    ::close(probe);
    return refused;
}

Result<int> listen_unix(const HttpAddress& address) {
    NIBBLE_TRY(const sockaddr_un name, unix_address(address.unix_path));
    const int fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) return system_error(address);
    const FolderLock lock(address.unix_path);
    const auto bind = [&] { return ::bind(fd, reinterpret_cast<const sockaddr*>(&name), sizeof name) == 0; };
    bool bound = bind();
    if (!bound && errno == EADDRINUSE) {
        if (is_dead_socket(address.unix_path, name) && ::unlink(address.unix_path.c_str()) == 0) bound = bind();
        if (!bound) errno = EADDRINUSE;
    }
    if (bound && ::listen(fd, 4096) == 0) return fd;
    Error error = system_error(address);
    if (!bound && errno == EADDRINUSE && !is_socket(address.unix_path))
        error = fail("{}: is a file, not a socket, and was not removed; choose another path", to_text(address));
    ::close(fd);
    return error;
}

Result<int> finish_connect(int fd, const sockaddr* name, socklen_t size, std::chrono::milliseconds patience,
                           const HttpAddress& address) {
    if (::connect(fd, name, size) != 0) {
        if (errno != EINPROGRESS && errno != EAGAIN) return system_error(address);
        pollfd ready{fd, POLLOUT, 0};
        if (::poll(&ready, 1, static_cast<int>(patience.count())) <= 0)
            return fail("{}: no connection within {} ms", to_text(address), patience.count());
        int code = 0;
        socklen_t length = sizeof code;
        ::getsockopt(fd, SOL_SOCKET, SO_ERROR, &code, &length);
        errno = code;
        if (code != 0) return system_error(address);
    }
    ::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) & ~O_NONBLOCK);
    return fd;
}

}  // namespace

Result<SocketFile> socket_file(const std::string& path) {
    struct stat info {};
    if (::lstat(path.c_str(), &info) != 0) return fail("{}: {}", path, std::strerror(errno));
    return SocketFile{path, info.st_dev, info.st_ino};
}

void SocketFile::remove() const {
    const FolderLock lock(path);
    const auto now = socket_file(path);
    if (now.ok() && now->device == device && now->inode == inode) ::unlink(path.c_str());
}

std::string to_text(const HttpAddress& address) {
    if (!address.unix_path.empty()) return "unix:" + address.unix_path;
    const bool v6 = address.host.find(':') != std::string::npos;
    return fmt::format("{}{}{}:{}", v6 ? "[" : "", address.host, v6 ? "]" : "", address.port);
}

Result<HttpUrl> parse_url(std::string_view url) {
    HttpUrl out;
    if (url.starts_with("unix:")) {
        out.address.unix_path = url.substr(5);
        if (out.address.unix_path.empty()) return fail("'{}': a path is missing after unix:", url);
        return out;
    }
    if (url.starts_with("https://")) return fail("'{}': https is not supported; give the server's http address", url);
    std::string_view rest = url;
    if (rest.starts_with("http://")) rest.remove_prefix(7);
    const std::string_view authority = rest.substr(0, rest.find('/'));
    out.base = rest.substr(authority.size());
    while (out.base.ends_with('/')) out.base.pop_back();
    size_t colon = authority.rfind(':');
    std::string_view host = authority;
    if (authority.starts_with('[')) {
        const size_t close = authority.find(']');
        if (close == authority.npos) return fail("'{}': ] is missing after [", url);
        host = authority.substr(1, close - 1);
        colon = close + 1 < authority.size() ? close + 1 : authority.npos;
    } else if (colon != authority.npos) {
        host = authority.substr(0, colon);
    }
    out.address.port = 80;
    if (colon != authority.npos) {
        const std::string_view port = authority.substr(colon + 1);
        const auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), out.address.port);
        if (error != std::errc() || end != port.data() + port.size() || authority[colon] != ':')
            return fail("'{}': '{}' is not a port", url, port);
    }
    out.address.host = host;
    if (host.empty()) return fail("'{}': no host", url);
    return out;
}

Result<int> listen_at(HttpAddress& address) {
    if (!address.unix_path.empty()) return listen_unix(address);
    NIBBLE_TRY(const AddressList list, resolved(address, AI_PASSIVE));
    Error error = fail("{}: no address", to_text(address));
    for (const addrinfo* one = list.get(); one; one = one->ai_next) {
        const int fd = ::socket(one->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (fd < 0) {
            error = system_error(address);
            continue;
        }
        const int on = 1;
        ::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
        if (::bind(fd, one->ai_addr, one->ai_addrlen) != 0 || ::listen(fd, 4096) != 0) {
            error = listen_error(address);
            ::close(fd);
            continue;
        }
        sockaddr_storage name{};
        socklen_t size = sizeof name;
        ::getsockname(fd, reinterpret_cast<sockaddr*>(&name), &size);
        if (name.ss_family == AF_INET) address.port = ntohs(reinterpret_cast<sockaddr_in*>(&name)->sin_port);
        if (name.ss_family == AF_INET6) address.port = ntohs(reinterpret_cast<sockaddr_in6*>(&name)->sin6_port);
        return fd;
    }
    return error;
}

Result<int> connect_to(const HttpAddress& address, std::chrono::milliseconds patience) {
    if (!address.unix_path.empty()) {
        NIBBLE_TRY(const sockaddr_un name, unix_address(address.unix_path));
        const int fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (fd < 0) return system_error(address);
        if (::connect(fd, reinterpret_cast<const sockaddr*>(&name), sizeof name) == 0) return fd;
        const Error error = system_error(address);
        ::close(fd);
        return error;
    }
    NIBBLE_TRY(const AddressList list, resolved(address, 0));
    Error error = fail("{}: no address", to_text(address));
    for (const addrinfo* one = list.get(); one; one = one->ai_next) {
        const int fd = ::socket(one->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (fd < 0) {
            error = system_error(address);
            continue;
        }
        auto connected = finish_connect(fd, one->ai_addr, one->ai_addrlen, patience, address);
        if (connected.ok()) {
            const int on = 1;
            ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
            return fd;
        }
        error = std::move(connected).error();
        ::close(fd);
    }
    return error;
}

}  // namespace nibble
