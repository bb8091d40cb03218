// One connection of the server: reads requests, hands them on, writes answers. Everything but HttpAnswer's functions
// runs on the server's thread. Includes Boost.Asio and Beast: for files of this folder only.
#pragma once

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

// What all connections of a server share. Outlives them.
struct HttpShared {
    boost::asio::io_context& io;
    HttpLimits limits;
    HttpHandler handler;
    BodyBudgets bodies;
    bool draining = false;
};

class HttpConnection;

// The answer of one request, on its way from any thread to the connection.
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

    // The server's thread's.
    struct Taken {
        std::string bytes;
        bool complete = false;
    };
    bool begun() const {
        const std::lock_guard lock(mutex_);
        return begun_;
    }
    Taken take();
    void peer_left();  // or the connection has no more use for the answer
    void drop();       // nobody is left who could say more
    void tick(HttpClock::time_point now);
    void write_idle_piece();  // of a stream that has one, at once
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
    bool chunked_, keep_alive_, head_;  // head_: the request was HEAD, the answer has no body
    bool begun_ = false, complete_ = false, aborted_ = false, gone_ = false, scheduled_ = false;
    std::string out_, body_;  // body_: follows out_, and is large
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
    void pump();                            // the answer has something to write
    void check(HttpClock::time_point now);  // deadlines
    void begin_drain();
    void close();
    bool closed() const { return !socket_.is_open(); }
    // Tells a connection that is one too many, and ends it.
    void refuse(int status, std::string_view why);

private:
    // idle: between requests; lingering: everything is said, and what the peer still sends is read and dropped, for a
    // socket closed on unread bytes takes the answer back.
    enum class Phase : uint8_t { idle, header, body, handling, lingering };
    using Parser = boost::beast::http::request_parser<CountedBody>;

    void new_request();
    void read();
    void on_read(const boost::system::error_code& error, size_t bytes);
    void on_shut();
    void look_for_peer(HttpClock::time_point now);
    void process();
    bool on_header();
    void dispatch();
    // A handler that runs out of memory ends its connection, not the server.
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
    HttpRequest request_;  // of the header that was read
    bool header_seen_ = false, reading_ = false, writing_ = false;
    // The peer has ended its side, but may still read (shutdown). While it is owed an answer it is looked for: a peer
    // that is gone refuses the interim answer 100, and a stream's idle piece.
    bool shut_ = false, interim_ = false;  // interim_: of HTTP/1.1
    HttpClock::time_point look_at_;
    std::chrono::milliseconds look_again_{0};
    std::string chunk_, unread_;  // chunk_: where the socket reads to
    std::string wire_;            // being written
    size_t written_ = 0;          // of wire_
    std::shared_ptr<PendingAnswer> answer_;
    bool answer_complete_ = false;
};

}  // namespace nibble
