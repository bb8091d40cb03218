// An HTTP/1.1 server for thousands of open connections on one thread (Boost.Asio; Boost.Beast parses requests). It
// listens on TCP or a unix socket. TLS needs a proxy.
//
//   NIBBLE_TRY(auto server, HttpServer::listen(address, {}, [](HttpRequest r, std::shared_ptr<HttpAnswer> answer) {
//       answer->send({.body = "hello"});
//   }));
//   server->start();
//
// Memory is bounded by connections * (header_bytes + unsent_bytes + 64 KiB) + bodies_bytes, whatever clients do. A
// request that violates HTTP or a limit gets a response made by HttpLimits::error_body, and its connection is closed.
// Requests of one connection are handled one after the other.
#pragma once

#include "base/error.h"
#include "http/address.h"
#include "http/message.h"

#include <chrono>
#include <functional>
#include <memory>
#include <string>

namespace nibble {

// The answer to a request. All functions may be called from any thread and never block. The first call of send(),
// begin() or abort() decides the kind of answer. An answer destroyed without any of them becomes status 500. A stream
// destroyed without end() is cut off, which the client notices.
class HttpAnswer {
public:
    virtual ~HttpAnswer() = default;
    virtual void send(HttpResponse response) = 0;
    // Starts a stream of unknown length; head.body is its first piece.
    virtual bool begin(HttpResponse head) = 0;
    // Returns false if the peer is gone, or if it reads so slowly that unsent_bytes is exceeded, which ends the
    // connection.
    virtual bool write(std::string_view piece) = 0;
    virtual void end() = 0;
    virtual void abort() = 0;
    // For streams: writes `piece` whenever nothing was written for `idle`. Zero turns this off.
    virtual void write_when_idle(std::string piece, std::chrono::milliseconds idle) = 0;
    // Sets a function that is called once, on the server's thread, if the peer leaves before the answer is complete. If
    // it has already left, the function is called at once.
    virtual void on_gone(std::function<void()> gone) = 0;
};

using HttpHandler = std::function<void(HttpRequest request, std::shared_ptr<HttpAnswer> answer)>;

struct HttpLimits {
    size_t connections = 8192;        // further clients get status 503 and are closed
    size_t header_bytes = 16 << 10;   // request line and headers
    size_t body_bytes = 32 << 20;     // body of one request
    size_t bodies_bytes = 256 << 20;  // bodies of all requests being read or handled
    size_t unsent_bytes = 4 << 20;    // buffered bytes of an answer that its peer does not read
    std::chrono::milliseconds header_time{
        30'000};  // from the first byte of a request; also until a new connection's first byte
    std::chrono::milliseconds body_time{120'000};
    std::chrono::milliseconds idle_time{75'000};   // between requests
    std::chrono::milliseconds write_time{60'000};  // without progress in writing
    // Makes the response for a rejected request; default: plain text.
    std::function<HttpResponse(int status, std::string_view why)> error_body;
};

class HttpServer {
public:
    // Listens; connections queue from now on. The handler runs on the server's thread and must not block.
    static Result<std::unique_ptr<HttpServer>> listen(HttpAddress address, HttpLimits limits, HttpHandler handler);
    ~HttpServer();  // closes all connections
    HttpServer(const HttpServer&) = delete;
    HttpServer& operator=(const HttpServer&) = delete;

    void start();
    const HttpAddress& address() const;  // includes the chosen port
    // Runs `work` on the server's thread.
    void post(std::function<void()> work);
    int64_t connections() const;
    // Accepts no more connections, closes idle ones, lets answers finish until `deadline`, then closes the rest.
    // Returns when no connection is left.
    void drain(std::chrono::steady_clock::time_point deadline);

private:
    struct State;
    explicit HttpServer(std::unique_ptr<State> state);
    std::unique_ptr<State> state_;
};

}  // namespace nibble
