// One connection of the server: reads requests, passes them to the handler, writes answers. Everything except
// HttpAnswer's functions runs on the server's thread. Includes Boost.Asio and Beast, so only files of this folder
// include it.
#pragma once

#include "http/framing.h"
#include "http/request_body.h"
#include "http/server.h"

#include <boost/asio/buffer.hpp>
#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/beast/http/parser.hpp>

#include <mutex>
#include <optional>
#include <string>

namespace nibble {

using HttpSocket = boost::asio::generic::stream_protocol::socket;
using HttpClock = std::chrono::steady_clock;

// State shared by all connections of a server. Outlives them.
struct HttpShared {
    boost::asio::io_context& io;
    HttpLimits limits;
    HttpHandler handler;
    BodyBudgets bodies;
    bool draining = false;
};

class HttpConnection;

// The answer to one request, passed from any thread to the connection.
class PendingAnswer : public HttpAnswer, public std::enable_shared_from_this<PendingAnswer> {
public:
    PendingAnswer(std::shared_ptr<HttpConnection> connection, boost::asio::io_context& io, size_t most, bool chunked,
                  bool keep_alive, bool head);

    void send(HttpResponse response) override;
    bool begin(HttpResponse head) override;
    bool write(std::string_view piece) override;
    void end() override;
    void abort() override;
    void write_when_idle(std::string piece, std::chrono::milliseconds idle) override;
    void on_gone(std::function<void()> gone) override;

    // Called on the server's thread only.
    struct Taken {
        std::string bytes;
        bool complete = false;
    };
    bool begun() const {
        const std::lock_guard lock(mutex_);
        return begun_;
    }
    Taken take();
    void peer_left();  // also called when the connection no longer needs the answer
    void drop();       // the last handle is gone: completes or aborts the answer
    void tick(HttpClock::time_point now);
    void write_idle_piece();  // writes a stream's idle piece, if it has one, at once
    bool keeps_alive() const { return keep_alive_; }
    bool aborted() const {
        const std::lock_guard lock(mutex_);
        return aborted_;
    }
    void close_afterwards();

private:
    void put_head(const HttpResponse& response, bool stream);
    void put_piece(std::string_view piece);
    void put_idle_piece();
    void schedule();
    void pump();

    mutable std::mutex mutex_;
    std::shared_ptr<HttpConnection> connection_;
    boost::asio::io_context& io_;
    size_t most_;
    bool chunked_, keep_alive_, head_;  // head_: a HEAD request, whose answer has no body
    bool begun_ = false, complete_ = false, aborted_ = false, gone_ = false, scheduled_ = false;
    std::string out_, body_;  // body_: a large body, written after out_
    std::shared_ptr<void> held_;
    std::string idle_piece_;
    std::chrono::milliseconds idle_{0};
    HttpClock::time_point last_write_;
    std::function<void()> on_gone_;
};

class HttpConnection : public std::enable_shared_from_this<HttpConnection> {
public:
    HttpConnection(HttpShared& shared, HttpSocket socket, std::string peer);
    ~HttpConnection();

    void start();
    void pump();                            // writes what the answer has ready
    void check(HttpClock::time_point now);  // enforces deadlines
    void begin_drain();
    void close();
    bool closed() const { return !socket_.is_open(); }
    // Answers with an error and closes the connection.
    void refuse(int status, std::string_view why);

private:
    // idle: between requests. lingering: the answer is written and further input is read and dropped, because closing a
    // socket with unread bytes can discard the answer.
    enum class Phase : uint8_t { idle, header, body, handling, lingering };
    using Parser = boost::beast::http::request_parser<CountedBody>;

    void new_request();
    void read();
    void on_read(const boost::system::error_code& error, size_t bytes);
    void on_shut();
    void look_for_peer(HttpClock::time_point now);
    void process();
    std::optional<BrokenHead> check_head_bytes();
    bool on_header();
    void dispatch();
    // Runs `work`. If it runs out of memory, this connection ends, not the server.
    template <class Work>
    void guarded(const Work& work);
    void write();
    void on_written(const boost::system::error_code& error, size_t bytes);
    void finish_answer();
    void linger();
    void set_phase(Phase phase, std::chrono::milliseconds patience);

    HttpShared& shared_;
    HttpSocket socket_;
    std::string peer_;
    Phase phase_ = Phase::idle;
    std::optional<HttpClock::time_point> deadline_, write_deadline_;
    std::optional<Parser> parser_;
    HttpRequest request_;     // filled from the header
    bool line_seen_ = false;  // the request line has been checked
    size_t looked_ = 0;       // bytes of unread_ that check_head_bytes() has checked
    bool header_seen_ = false, reading_ = false, writing_ = false;
    // The peer has shut down its sending side but may still read. While an answer is pending, the connection probes the
    // peer with an interim response 100 or a stream's idle piece; writing fails if the peer is gone.
    bool shut_ = false, interim_ = false;  // interim_: the request allows interim responses (HTTP/1.1)
    HttpClock::time_point look_at_;
    std::chrono::milliseconds look_again_{0};
    std::string chunk_, unread_;  // chunk_: the socket's read buffer
    std::string wire_;            // bytes being written
    size_t written_ = 0;          // bytes of wire_ already written
    std::shared_ptr<PendingAnswer> answer_;
    bool answer_complete_ = false;
};

}  // namespace nibble
