#include "http/connection.h"

#include <fmt/format.h>
#include <boost/asio/post.hpp>

namespace nibble {
namespace {

constexpr size_t copied_body = 64 << 10;  // longer bodies are written without a copy

}  // namespace

PendingAnswer::PendingAnswer(std::shared_ptr<HttpConnection> connection, boost::asio::io_context& io, size_t most,
                             bool chunked, bool keep_alive, bool head)
    : connection_(std::move(connection)),
      io_(io),
      most_(most),
      chunked_(chunked),
      keep_alive_(keep_alive),
      head_(head),
      last_write_(HttpClock::now()) {}

void PendingAnswer::put_head(const HttpResponse& r, bool stream) {
    begun_ = true;
    out_ += fmt::format("HTTP/1.1 {} {}\r\n", r.status, status_text(r.status));
    for (const auto& [name, value] : r.headers) {
        out_ += name;
        out_ += ": ";
        for (const char c : value) out_ += c == '\r' || c == '\n' ? ' ' : c;
        out_ += "\r\n";
    }
    if (stream && !chunked_) keep_alive_ = false;  // HTTP/1.0: the end of the connection ends the body
    if (!stream && r.status != 204) out_ += fmt::format("Content-Length: {}\r\n", r.body.size());
    if (stream && chunked_) out_ += "Transfer-Encoding: chunked\r\n";
    out_ += keep_alive_ ? "Connection: keep-alive\r\n\r\n" : "Connection: close\r\n\r\n";
}

void PendingAnswer::put_piece(std::string_view piece) {
    if (piece.empty() || head_) return;
    if (chunked_) out_ += fmt::format("{:x}\r\n", piece.size());
    out_ += piece;
    if (chunked_) out_ += "\r\n";
    last_write_ = HttpClock::now();
}

void PendingAnswer::schedule() {
    if (scheduled_ || gone_) return;
    scheduled_ = true;
    boost::asio::post(io_, [self = shared_from_this()] { self->pump(); });
}

void PendingAnswer::pump() {
    std::shared_ptr<HttpConnection> connection;
    {
        const std::lock_guard lock(mutex_);
        scheduled_ = false;
        connection = connection_;
    }
    if (connection) connection->pump();
}

void PendingAnswer::send(HttpResponse response) {
    const std::lock_guard lock(mutex_);
    if (begun_ || aborted_ || gone_) return;
    put_head(response, false);
    held_ = std::move(response.held);
    if (!head_ && response.status != 204) {
        if (response.body.size() <= copied_body)
            out_ += response.body;
        else
            body_ = std::move(response.body);
    }
    complete_ = true;
    schedule();
}

bool PendingAnswer::begin(HttpResponse head) {
    const std::lock_guard lock(mutex_);
    if (begun_ || aborted_ || gone_) return false;
    put_head(head, true);
    put_piece(head.body);
    schedule();
    return true;
}

bool PendingAnswer::write(std::string_view piece) {
    const std::lock_guard lock(mutex_);
    if (!begun_ || complete_ || aborted_ || gone_) return false;
    if (out_.size() + piece.size() > most_) {
        aborted_ = true;
        schedule();
        return false;
    }
    put_piece(piece);
    schedule();
    return true;
}

void PendingAnswer::end() {
    const std::lock_guard lock(mutex_);
    if (!begun_ || complete_ || aborted_ || gone_) return;
    if (chunked_ && !head_) out_ += "0\r\n\r\n";
    complete_ = true;
    schedule();
}

void PendingAnswer::abort() {
    const std::lock_guard lock(mutex_);
    if (complete_ || aborted_ || gone_) return;
    aborted_ = true;
    schedule();
}

void PendingAnswer::write_when_idle(std::string piece, std::chrono::milliseconds idle) {
    const std::lock_guard lock(mutex_);
    idle_piece_ = std::move(piece);
    idle_ = idle;
    last_write_ = HttpClock::now();
}

void PendingAnswer::on_gone(std::function<void()> gone) {
    {
        const std::lock_guard lock(mutex_);
        if (!gone_) {
            if (!complete_) on_gone_ = std::move(gone);
            return;
        }
        if (complete_) return;
    }
    gone();
}

PendingAnswer::Taken PendingAnswer::take() {
    const std::lock_guard lock(mutex_);
    Taken taken{std::move(out_), complete_ && body_.empty()};
    out_.clear();
    if (taken.bytes.empty() && !body_.empty()) taken = {std::exchange(body_, {}), complete_};
    return taken;
}

void PendingAnswer::peer_left() {
    std::function<void()> gone;
    {
        const std::lock_guard lock(mutex_);
        if (gone_) return;
        gone_ = true;
        connection_.reset();
        std::string().swap(out_);
        std::string().swap(body_);
        held_.reset();
        gone = std::exchange(on_gone_, {});
        if (complete_) gone = {};
    }
    if (gone) gone();
}

void PendingAnswer::drop() {
    bool begun = false;
    {
        const std::lock_guard lock(mutex_);
        begun = begun_;
    }
    begun ? abort() : send({.status = 500, .headers = {{"Content-Type", "text/plain"}}, .body = "no answer\n"});
}

void PendingAnswer::tick(HttpClock::time_point now) {
    const std::lock_guard lock(mutex_);
    if (now - last_write_ >= idle_) put_idle_piece();
}

void PendingAnswer::write_idle_piece() {
    const std::lock_guard lock(mutex_);
    put_idle_piece();
}

// Requires the mutex.
void PendingAnswer::put_idle_piece() {
    if (idle_.count() <= 0 || !begun_ || complete_ || aborted_ || gone_) return;
    last_write_ = HttpClock::now();
    if (out_.size() + idle_piece_.size() > most_) return;
    put_piece(idle_piece_);
    schedule();
}

void PendingAnswer::close_afterwards() {
    const std::lock_guard lock(mutex_);
    keep_alive_ = false;
}

}  // namespace nibble
