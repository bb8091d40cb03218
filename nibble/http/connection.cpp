#include "http/connection.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>

#include <new>

namespace nibble {
namespace {

namespace beast_http = boost::beast::http;

constexpr size_t read_bytes = 16 << 10;
// Limit of pipelined bytes after the current request. Above it the connection is not read until the request is
// answered.
constexpr size_t most_unread = 64 << 10;
constexpr std::chrono::milliseconds linger_time{2000};
constexpr std::chrono::milliseconds first_look{1000};  // first check of a peer that has shut down its side
constexpr size_t kept_capacity = 64 << 10;

// Returns the HTTP status for an error of the parser.
int status_of(const boost::system::error_code& error) {
    if (error == beast_http::error::header_limit) return 431;
    if (error == beast_http::error::body_limit) return 413;
    if (error == beast_http::error::buffer_overflow) return 503;
    return 400;
}

std::string why_of(int status, const boost::system::error_code& error, const HttpLimits& limits) {
    switch (status) {
        case 431:
            return fmt::format("the request's headers are longer than {} bytes", limits.header_bytes);
        case 413:
            return fmt::format("the request's body is longer than {} bytes", limits.body_bytes);
        case 503:
            return "the requests that are being read or answered take all memory that is set apart for them";
        default:
            return fmt::format("not HTTP: {}", error.message());
    }
}

// Groups IPv6 addresses by their /64 network, because one client usually owns all of it.
std::string peer_group(const std::string& peer) {
    in6_addr address{};
    if (peer.find(':') == peer.npos || ::inet_pton(AF_INET6, peer.c_str(), &address) != 1) return peer;
    if (IN6_IS_ADDR_V4MAPPED(&address)) return peer.substr(peer.rfind(':') + 1);
    return std::string(reinterpret_cast<const char*>(&address), 8);
}

HttpResponse error_response(const HttpLimits& limits, int status, std::string_view why) {
    if (limits.error_body) return limits.error_body(status, why);
    return {.status = status, .headers = {{"Content-Type", "text/plain"}}, .body = std::string(why) + "\n"};
}

}  // namespace

HttpConnection::HttpConnection(HttpShared& shared, HttpSocket socket, std::string peer)
    : shared_(shared), socket_(std::move(socket)), peer_(std::move(peer)) {}

HttpConnection::~HttpConnection() {
    if (answer_) answer_->peer_left();
}

void HttpConnection::start() {
    chunk_.resize(read_bytes);
    new_request();
    set_phase(Phase::idle, shared_.limits.header_time);
    read();
}

void HttpConnection::new_request() {
    parser_.emplace();
    parser_->header_limit(static_cast<uint32_t>(shared_.limits.header_bytes));
    parser_->body_limit(shared_.limits.body_bytes);
    header_seen_ = line_seen_ = false;
    looked_ = 0;
    answer_complete_ = false;
}

void HttpConnection::set_phase(Phase phase, std::chrono::milliseconds patience) {
    phase_ = phase;
    deadline_.reset();
    if (patience.count() > 0) deadline_ = HttpClock::now() + patience;
}

void HttpConnection::read() {
    if (reading_ || shut_ || closed() || unread_.size() >= most_unread) return;
    reading_ = true;
    socket_.async_read_some(boost::asio::buffer(chunk_),
                            [self = shared_from_this()](const boost::system::error_code& error, size_t bytes) {
                                self->guarded([&] { self->on_read(error, bytes); });
                            });
}

void HttpConnection::on_read(const boost::system::error_code& error, size_t bytes) {
    reading_ = false;
    if (closed()) return;
    if (error == boost::asio::error::eof && phase_ == Phase::handling) return on_shut();
    if (error) {
        close();
        return;
    }
    if (phase_ == Phase::lingering) {
        read();
        return;
    }
    unread_.append(chunk_.data(), bytes);
    process();
    read();
}

// The peer sends no more. It may have closed the socket or only its sending side; both look the same until something is
// written.
void HttpConnection::on_shut() {
    shut_ = true;
    look_again_ = first_look;
    look_at_ = HttpClock::now() + look_again_;
}

void HttpConnection::look_for_peer(HttpClock::time_point now) {
    pollfd socket{socket_.native_handle(), 0, 0};
    if (::poll(&socket, 1, 0) > 0 && (socket.revents & (POLLERR | POLLHUP))) return close();
    if (writing_ || now < look_at_ || !answer_) return;
    look_again_ *= 2;
    look_at_ = now + look_again_;
    if (answer_->begun()) return answer_->write_idle_piece();
    if (!interim_) return;
    wire_ = "HTTP/1.1 100 Continue\r\n\r\n";
    written_ = 0;
    write();
}

void HttpConnection::process() {
    if (phase_ == Phase::handling || phase_ == Phase::lingering) return;
    while (!unread_.empty()) {
        if (phase_ == Phase::idle) {
            // A line end between requests is allowed (RFC 9112, 2.2).
            const size_t blank = std::min(unread_.find_first_not_of("\r\n"), unread_.size());
            unread_.erase(0, blank);
            if (unread_.empty()) return;
            set_phase(Phase::header, shared_.limits.header_time);
        }
        if (!header_seen_)
            if (const auto broken = check_head_bytes()) return refuse(broken->status, broken->why);
        boost::system::error_code error;
        const size_t used = parser_->put(boost::asio::buffer(std::as_const(unread_)), error);
        unread_.erase(0, used);
        looked_ -= std::min(looked_, used);
        if (error && error != beast_http::error::need_more) {
            const int status = status_of(error);
            refuse(status, why_of(status, error, shared_.limits));
            return;
        }
        if (!header_seen_ && parser_->is_header_done()) {
            header_seen_ = true;
            if (!on_header()) return;
        }
        if (parser_->is_done()) {
            dispatch();
            return;
        }
        if (error || used == 0) break;
    }
    // The parser consumes whole lines only. This limits the size of an unfinished line.
    if (unread_.size() > shared_.limits.header_bytes + read_bytes)
        refuse(header_seen_ ? 400 : 431, why_of(431, {}, shared_.limits));
}

// The bytes of the head that have arrived, of which the parser has taken whole lines.
std::optional<BrokenHead> HttpConnection::check_head_bytes() {
    const bool ends = line_seen_ && unread_.starts_with("\r\n");
    const size_t last = ends ? 0 : unread_.find("\r\n\r\n", looked_ - std::min<size_t>(looked_, 3));
    const std::string_view head = std::string_view(unread_).substr(0, last == unread_.npos ? last : last + 2);
    if (const auto broken = broken_lines(head, std::min(looked_, head.size()))) return broken;
    looked_ = head.size();
    const size_t line = line_seen_ ? head.npos : head.find("\r\n");
    if (line == head.npos) return std::nullopt;
    line_seen_ = true;
    return settle_version(std::span(unread_).first(line));
}

bool HttpConnection::on_header() {
    parser_->eager(true);
    set_phase(Phase::body, shared_.limits.body_time);
    const auto& message = parser_->get();
    interim_ = message.version() == 11;
    request_ = HttpRequest();
    request_.method = std::string(message.method_string());
    request_.peer = peer_;
    for (const auto& field : message)
        request_.headers.emplace_back(lower_case({field.name_string().data(), field.name_string().size()}),
                                      std::string(field.value()));
    if (const auto broken = broken_head(request_.headers, interim_ ? 1 : 0)) {
        refuse(broken->status, broken->why);
        return false;
    }
    const std::string_view target(message.target().data(), message.target().size());
    if (!(request_.method == "OPTIONS" && target == "*") && !read_target(target, request_)) {
        refuse(400, "the request's target is neither an absolute path nor an http address");
        return false;
    }
    if (request_.host.empty()) request_.host = request_.header("host");
    parser_->get().body().share = shared_.bodies.share(peer_group(peer_));
    if (const auto length = parser_->content_length(); length && *length > shared_.limits.body_bytes) {
        refuse(413, why_of(413, {}, shared_.limits));
        return false;
    }
    const auto expect = message[beast_http::field::expect];
    if (expect.empty() || message.version() == 10) return true;
    if (!boost::beast::iequals(expect, "100-continue")) {
        refuse(417, "the only expectation that is met is 100-continue");
        return false;
    }
    if (!parser_->is_done() && unread_.empty() && !writing_) {
        wire_ = "HTTP/1.1 100 Continue\r\n\r\n";
        written_ = 0;
        write();
    }
    return true;
}

void HttpConnection::dispatch() {
    auto message = parser_->release();
    HttpRequest request = std::exchange(request_, HttpRequest());
    request.body = std::move(message.body().text);
    request.held = std::move(message.body().share);
    set_phase(Phase::handling, {});
    answer_ = std::make_shared<PendingAnswer>(shared_from_this(), shared_.io, shared_.limits.unsent_bytes,
                                              message.version() == 11, message.keep_alive() && !shared_.draining,
                                              request.method == "HEAD");
    const std::shared_ptr<HttpAnswer> handle(answer_.get(), [owner = answer_](HttpAnswer*) { owner->drop(); });
    shared_.handler(std::move(request), handle);
}

void HttpConnection::refuse(int status, std::string_view why) {
    if (chunk_.empty()) chunk_.resize(read_bytes);
    set_phase(Phase::handling, {});
    unread_.clear();
    answer_ = std::make_shared<PendingAnswer>(shared_from_this(), shared_.io, shared_.limits.unsent_bytes, true, false,
                                              false);
    answer_->send(error_response(shared_.limits, status, why));
}

void HttpConnection::pump() {
    if (closed() || !answer_) return;
    // Closes at once: a write to a peer that does not read would last until write_time.
    if (answer_->aborted()) {
        close();
        return;
    }
    if (writing_) return;
    PendingAnswer::Taken taken = answer_->take();
    answer_complete_ = taken.complete;
    if (taken.bytes.empty()) {
        if (answer_complete_) finish_answer();
        return;
    }
    wire_ = std::move(taken.bytes);
    written_ = 0;
    write();
}

void HttpConnection::write() {
    writing_ = true;
    write_deadline_ = HttpClock::now() + shared_.limits.write_time;
    socket_.async_write_some(boost::asio::buffer(wire_.data() + written_, wire_.size() - written_),
                             [self = shared_from_this()](const boost::system::error_code& error, size_t bytes) {
                                 self->guarded([&] { self->on_written(error, bytes); });
                             });
}

template <class Work>
void HttpConnection::guarded(const Work& work) {
    try {
        work();
    } catch (const std::bad_alloc&) {
        close();
    }
}

void HttpConnection::on_written(const boost::system::error_code& error, size_t bytes) {
    writing_ = false;
    write_deadline_.reset();
    if (closed()) return;
    if (error) {
        close();
        return;
    }
    written_ += bytes;
    if (written_ < wire_.size()) {
        write();
        return;
    }
    wire_.clear();
    if (wire_.capacity() > kept_capacity) std::string().swap(wire_);
    pump();
}

void HttpConnection::finish_answer() {
    const bool keep = answer_->keeps_alive() && !shared_.draining;
    answer_->peer_left();
    answer_.reset();
    if (!keep) {
        linger();
        return;
    }
    new_request();
    set_phase(Phase::idle, shared_.limits.idle_time);
    process();
    if (shut_ && phase_ != Phase::handling) return close();  // no further bytes can arrive
    read();
}

void HttpConnection::linger() {
    set_phase(Phase::lingering, linger_time);
    unread_.clear();
    boost::system::error_code ignored;
    socket_.shutdown(HttpSocket::shutdown_send, ignored);
    if (shut_) return close();
    read();
}

void HttpConnection::check(HttpClock::time_point now) {
    if (closed()) return;
    if (answer_) answer_->tick(now);
    if (write_deadline_ && now >= *write_deadline_) {
        close();
        return;
    }
    if (shut_) look_for_peer(now);
    if (closed() || !deadline_ || now < *deadline_) return;
    if (phase_ == Phase::header || phase_ == Phase::body)
        refuse(408, "the request took too long to arrive");
    else
        close();
}

void HttpConnection::begin_drain() {
    if (phase_ == Phase::idle) close();
    if (answer_) answer_->close_afterwards();
}

void HttpConnection::close() {
    if (closed()) return;
    boost::system::error_code ignored;
    socket_.close(ignored);
    if (const auto answer = std::exchange(answer_, nullptr)) answer->peer_left();
}

}  // namespace nibble
