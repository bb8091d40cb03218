// An HTTP/1.1 server: thousands of open connections on one thread of its own (Boost.Asio; requests are parsed by
// Boost.Beast). Over TCP or a unix socket; no TLS, which is a proxy's business.
//
//   NIBBLE_TRY(auto server, HttpServer::listen(address, {}, [](HttpRequest r, std::shared_ptr<HttpAnswer> answer) {
//       answer->send({.body = "hello"});
//   }));
//   server->start();
//
// Memory is bounded: connections * (header_bytes + unsent_bytes + 64 KiB) + bodies_bytes, whatever the peers do. A
// request that breaks HTTP or a limit gets an answer with the body that HttpLimits::error_body makes, and its
// connection ends. Requests of one connection are handled one after the other.
#pragma once

#include "base/error.h"
#include "http/address.h"
#include "http/message.h"

#include <chrono>
#include <functional>
#include <memory>
#include <string>

namespace nibble {

// Where a request's answer goes. All functions may be called from any thread and never block; the first of send(),
// begin() and abort() decides. An answer that is dropped without one of them becomes status 500; a stream without end()
// is broken off, which the client sees.
class HttpAnswer {
public:
    virtual ~HttpAnswer() = default;
    virtual void send(HttpResponse response) = 0;
    // A stream of pieces of unknown length; head.body is the first.
    virtual bool begin(HttpResponse head) = 0;
    // False: the peer is gone, or reads so slowly that unsent_bytes were reached, which ends the connection.
    virtual bool write(std::string_view piece) = 0;
    virtual void end() = 0;
    virtual void abort() = 0;
    // Of a stream: `piece` is written where nothing was for so long. Zero: not any more.
    virtual void write_when_idle(std::string piece, std::chrono::milliseconds idle) = 0;
    // Called once, on the server's thread, if the peer leaves before the answer is complete; at once if it has.
    virtual void on_gone(std::function<void()> gone) = 0;
};

using HttpHandler = std::function<void(HttpRequest request, std::shared_ptr<HttpAnswer> answer)>;

struct HttpLimits {
    size_t connections = 8192;                      // more are told 503 and closed
    size_t header_bytes = 16 << 10;                 // of a request line and its headers
    size_t body_bytes = 32 << 20;                   // of a request
    size_t bodies_bytes = 256 << 20;                // of all requests that are read or handled
    size_t unsent_bytes = 4 << 20;                  // of an answer that its peer does not read
    std::chrono::milliseconds header_time{30'000};  // from a request's first byte, and for a new connection's first
    std::chrono::milliseconds body_time{120'000};
    std::chrono::milliseconds idle_time{75'000};   // between requests
    std::chrono::milliseconds write_time{60'000};  // without a byte read by the peer
    // What a peer is told; default: plain text.
    std::function<HttpResponse(int status, std::string_view why)> error_body;
};

class HttpServer {
public:
    // Listens: connections queue from now on. The handler is called on the server's thread and does not block.
    static Result<std::unique_ptr<HttpServer>> listen(HttpAddress address, HttpLimits limits, HttpHandler handler);
    ~HttpServer();  // closes everything
    HttpServer(const HttpServer&) = delete;
    HttpServer& operator=(const HttpServer&) = delete;

    void start();
    const HttpAddress& address() const;  // with the port that was chosen
    // Runs `work` on the server's thread.
    void post(std::function<void()> work);
    int64_t connections() const;
    // Accepts no more connections, ends idle ones, lets answers finish until `deadline`, then cuts them. Returns when
    // none is left.
    void drain(std::chrono::steady_clock::time_point deadline);

private:
    struct State;
    explicit HttpServer(std::unique_ptr<State> state);
    std::unique_ptr<State> state_;
};

}  // namespace nibble
