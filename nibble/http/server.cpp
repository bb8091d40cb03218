#include "http/server.h"

#include "http/connection.h"

#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>

#include <condition_variable>
#include <new>
#include <optional>
#include <thread>
#include <unordered_set>

namespace nibble {
namespace {

constexpr std::chrono::milliseconds sweep_time{100};

std::string peer_name(const sockaddr_storage& name, socklen_t size) {
    if (name.ss_family == AF_UNIX) return "unix";
    char host[NI_MAXHOST];
    if (::getnameinfo(reinterpret_cast<const sockaddr*>(&name), size, host, sizeof host, nullptr, 0, NI_NUMERICHOST))
        return "?";
    return host;
}

}  // namespace

struct HttpServer::State {
    HttpAddress at;
    std::optional<SocketFile> file;  // path of a unix socket, while it listens
    boost::asio::io_context io{1};
    HttpShared shared;
    boost::asio::posix::stream_descriptor listener;
    boost::asio::steady_timer sweep_timer;
    std::unordered_set<std::shared_ptr<HttpConnection>> connections;
    std::atomic<int64_t> open{0};
    std::thread thread;
    std::mutex mutex;
    std::condition_variable rest;
    bool drained = false;  // guarded by the mutex
    bool accept_stalled = false, stopped = false;

    State(HttpAddress address, int fd, HttpLimits limits, HttpHandler handler)
        : at(std::move(address)),
          shared{io, std::move(limits), std::move(handler), BodyBudgets(0)},
          listener(io, fd),
          sweep_timer(io) {
        shared.bodies = BodyBudgets(shared.limits.bodies_bytes);
    }

    void accept() {
        listener.async_wait(
            boost::asio::posix::stream_descriptor::wait_read, [this](const boost::system::error_code& error) {
                if (error || !listener.is_open()) return;
                accept_stalled = true;  // no file descriptor or memory is left: the next sweep tries again
                if (!accept_all()) return;
                accept();
                accept_stalled = false;
            });
    }

    bool accept_all() {
        for (int n = 0; n < 64; ++n) {
            sockaddr_storage name{};
            socklen_t size = sizeof name;
            const int fd = ::accept4(listener.native_handle(), reinterpret_cast<sockaddr*>(&name), &size,
                                     SOCK_CLOEXEC | SOCK_NONBLOCK);
            if (fd < 0) return errno == EAGAIN || errno == EWOULDBLOCK || errno == ECONNABORTED || errno == EINTR;
            const int on = 1, family = at.unix_path.empty() ? name.ss_family : AF_UNIX;
            if (family != AF_UNIX) ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
            name.ss_family = static_cast<sa_family_t>(family);
            HttpSocket socket(io);
            boost::system::error_code error;
            socket.assign(boost::asio::generic::stream_protocol(family, 0), fd, error);
            if (error) {
                ::close(fd);
                continue;
            }
            auto connection = std::make_shared<HttpConnection>(shared, std::move(socket), peer_name(name, size));
            connections.insert(connection);
            open = static_cast<int64_t>(connections.size());
            if (connections.size() > shared.limits.connections)
                connection->refuse(503, "too many connections");
            else
                connection->start();
        }
        return true;
    }

    void sweep() {
        sweep_timer.expires_after(sweep_time);
        sweep_timer.async_wait([this](const boost::system::error_code& error) {
            if (error || stopped) return;
            sweep();
            look_around();
        });
    }

    void look_around() {
        const auto now = HttpClock::now();
        for (const auto& connection : std::vector(connections.begin(), connections.end())) connection->check(now);
        std::erase_if(connections, [](const auto& connection) { return connection->closed(); });
        open = static_cast<int64_t>(connections.size());
        if (shared.draining && connections.empty()) {
            const std::lock_guard lock(mutex);
            drained = true;
            rest.notify_all();
        }
        if (accept_stalled && listener.is_open()) {
            accept();
            accept_stalled = false;
        }
    }

    // Runs until no work is left. A handler that runs out of memory ends only its own work.
    void run() {
        for (bool done = false; !done;) {
            try {
                io.run();
                done = true;
            } catch (const std::bad_alloc&) {
            }
        }
    }

    // Runs on the server's thread.
    void begin_drain() {
        shared.draining = true;
        if (const auto listened = std::exchange(file, std::nullopt)) listened->remove();
        boost::system::error_code ignored;
        listener.close(ignored);
        for (const auto& connection : connections) connection->begin_drain();
        look_around();
    }

    void close_all() {
        for (const auto& connection : connections) connection->close();
        look_around();
    }
};

Result<std::unique_ptr<HttpServer>> HttpServer::listen(HttpAddress address, HttpLimits limits, HttpHandler handler) {
    NIBBLE_TRY(const int fd, listen_at(address));
    auto state = std::make_unique<State>(std::move(address), fd, std::move(limits), std::move(handler));
    if (!state->at.unix_path.empty()) {
        NIBBLE_TRY(state->file, socket_file(state->at.unix_path));
    }
    return std::unique_ptr<HttpServer>(new HttpServer(std::move(state)));
}

HttpServer::HttpServer(std::unique_ptr<State> state) : state_(std::move(state)) {}

HttpServer::~HttpServer() {
    State& s = *state_;
    boost::asio::post(s.io, [&s] {
        s.begin_drain();
        s.close_all();
        s.stopped = true;
        s.sweep_timer.cancel();
    });
    if (s.thread.joinable())
        s.thread.join();
    else
        s.run();
}

const HttpAddress& HttpServer::address() const { return state_->at; }
int64_t HttpServer::connections() const { return state_->open; }
void HttpServer::post(std::function<void()> work) { boost::asio::post(state_->io, std::move(work)); }

void HttpServer::start() {
    State& s = *state_;
    if (s.thread.joinable()) return;
    s.accept();
    s.sweep();
    s.thread = std::thread([&s] { s.run(); });
}

void HttpServer::drain(std::chrono::steady_clock::time_point deadline) {
    State& s = *state_;
    boost::asio::post(s.io, [&s] { s.begin_drain(); });
    std::unique_lock lock(s.mutex);
    if (s.rest.wait_until(lock, deadline, [&] { return s.drained; })) return;
    lock.unlock();
    boost::asio::post(s.io, [&s] { s.close_all(); });
    lock.lock();
    s.rest.wait(lock, [&] { return s.drained; });
}

}  // namespace nibble
