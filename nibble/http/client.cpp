#include "http/client.h"

#include "http/body_reader.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>
#include <boost/beast/http/parser.hpp>

#include <cerrno>
#include <cstring>
#include <optional>

namespace nibble {
namespace {

// A body whose pieces are passed on as they arrive.
struct Pieces {
    std::function<bool(std::string_view)> take;
};

bool wait_for(int fd, short what, std::chrono::milliseconds patience) {
    pollfd ready{fd, what, 0};
    int n = 0;
    do n = ::poll(&ready, 1, static_cast<int>(patience.count()));
    while (n < 0 && errno == EINTR);
    return n > 0;
}

}  // namespace

Result<HttpClient> HttpClient::connect(const HttpAddress& address, std::chrono::milliseconds patience) {
    NIBBLE_TRY(const int fd, connect_to(address, patience));
    return HttpClient(fd, address, patience);
}

HttpClient::HttpClient(int fd, HttpAddress address, std::chrono::milliseconds patience)
    : fd_(fd), address_(std::move(address)), patience_(patience) {}
HttpClient::HttpClient(HttpClient&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)),
      address_(std::move(other.address_)),
      patience_(other.patience_),
      unread_(std::move(other.unread_)) {}
HttpClient& HttpClient::operator=(HttpClient&& other) noexcept {
    std::swap(fd_, other.fd_);
    std::swap(address_, other.address_);
    std::swap(patience_, other.patience_);
    std::swap(unread_, other.unread_);
    return *this;
}
HttpClient::~HttpClient() { close(); }

void HttpClient::close() {
    if (fd_ >= 0) ::close(fd_);
    fd_ = -1;
}

void HttpClient::shut_down_writing() { ::shutdown(fd_, SHUT_WR); }

Status HttpClient::write(std::string_view bytes) {
    while (!bytes.empty()) {
        if (fd_ < 0) return fail("{}: the connection is closed", to_text(address_));
        if (!wait_for(fd_, POLLOUT, patience_))
            return fail("{}: the server does not read the request", to_text(address_));
        const ssize_t n = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0 && (errno == EINTR || errno == EAGAIN)) continue;
        if (n < 0) return fail("{}: {}", to_text(address_), std::strerror(errno));
        bytes.remove_prefix(static_cast<size_t>(n));
    }
    return Ok{};
}

Result<std::string> HttpClient::read_some() {
    if (!unread_.empty()) return std::exchange(unread_, {});
    std::string bytes(64 << 10, '\0');
    while (true) {
        if (fd_ < 0) return fail("{}: the connection is closed", to_text(address_));
        if (!wait_for(fd_, POLLIN, patience_))
            return fail("{}: no byte within {} ms", to_text(address_), patience_.count());
        const ssize_t n = ::recv(fd_, bytes.data(), bytes.size(), MSG_DONTWAIT);
        if (n < 0 && (errno == EINTR || errno == EAGAIN)) continue;
        if (n < 0) return fail("{}: {}", to_text(address_), std::strerror(errno));
        bytes.resize(static_cast<size_t>(n));
        return bytes;
    }
}

Result<HttpResponse> HttpClient::receive_pieces(
    std::string_view method, const std::function<bool(const HttpResponse&, std::string_view)>& on_piece) {
    namespace http = boost::beast::http;
    HttpResponse head;
    std::optional<http::response_parser<BodyOf<Pieces>>> parser;
    bool wanted = true;
    const auto begin = [&] {
        parser.emplace();
        parser->header_limit(64 << 10);
        parser->body_limit(uint64_t{1} << 60);
        parser->eager(false);
        parser->skip(method == "HEAD");
        parser->get().body().take = [&](std::string_view piece) {
            wanted = wanted && on_piece(head, piece);
            return true;  // reads over unwanted pieces until the connection is closed
        };
    };
    begin();
    bool seen = false, ended = false;
    std::string bytes;
    while (!parser->is_done()) {
        boost::system::error_code error;
        size_t used = 0;
        if (ended)
            parser->put_eof(error);
        else
            used = parser->put(boost::asio::buffer(std::as_const(bytes)), error);
        bytes.erase(0, used);
        if (error && error != http::error::need_more)
            return fail("{}: the answer is not HTTP: {}", to_text(address_), error.message());
        if (!seen && parser->is_header_done()) {
            if (parser->get().result_int() / 100 == 1) {  // 100 Continue
                begin();
                continue;
            }
            seen = true;
            parser->eager(true);
            head.status = static_cast<int>(parser->get().result_int());
            for (const auto& field : parser->get())
                head.headers.emplace_back(lower_case({field.name_string().data(), field.name_string().size()}),
                                          std::string(field.value()));
        }
        if (!wanted) {
            close();
            return head;
        }
        if (parser->is_done() || ended || (used > 0 && !bytes.empty())) continue;
        NIBBLE_TRY(const std::string more, read_some());
        if (more.empty()) {
            if (!parser->got_some() && bytes.empty())
                return fail("{}: the server closed the connection without an answer", to_text(address_));
            ended = true;
        }
        bytes += more;
    }
    unread_ = std::move(bytes);
    if (!parser->keep_alive()) close();
    return head;
}

Result<HttpResponse> HttpClient::receive(std::string_view method) {
    std::string body;
    NIBBLE_TRY(HttpResponse response, receive_pieces(method, [&](const HttpResponse&, std::string_view piece) {
                   body += piece;
                   return true;
               }));
    response.body = std::move(body);
    return response;
}

namespace {

std::string request_text(const HttpRequest& r, const HttpAddress& address) {
    std::string text = fmt::format("{} {} HTTP/1.1\r\nHost: {}\r\n", r.method, r.path,
                                   address.unix_path.empty() ? to_text(address) : std::string("localhost"));
    for (const auto& [name, value] : r.headers) text += fmt::format("{}: {}\r\n", name, value);
    if (!r.body.empty() || r.method == "POST") text += fmt::format("Content-Length: {}\r\n", r.body.size());
    return text + "\r\n" + r.body;
}

}  // namespace

Result<HttpResponse> HttpClient::send(const HttpRequest& request) {
    NIBBLE_CHECK(write(request_text(request, address_)));
    return receive(request.method);
}

Result<HttpResponse> HttpClient::send(const HttpRequest& request,
                                      const std::function<bool(const HttpResponse&, std::string_view)>& on_piece) {
    NIBBLE_CHECK(write(request_text(request, address_)));
    return receive_pieces(request.method, on_piece);
}

void SseReader::push(std::string_view bytes, const std::function<void(const SseEvent&)>& on_event) {
    for (const char c : bytes) {
        if (c != '\n') {
            line_ += c;
            continue;
        }
        if (line_.ends_with('\r')) line_.pop_back();
        const std::string line = std::exchange(line_, {});
        if (line.empty()) {
            if (has_data_ || !event_.name.empty()) on_event(event_);
            event_ = {};
            has_data_ = false;
            continue;
        }
        if (line[0] == ':') {
            ++comments_;
            continue;
        }
        const size_t colon = line.find(':');
        const std::string_view field = std::string_view(line).substr(0, colon);
        std::string_view value = colon == line.npos ? std::string_view() : std::string_view(line).substr(colon + 1);
        if (value.starts_with(' ')) value.remove_prefix(1);
        if (field == "event") event_.name = value;
        if (field != "data") continue;
        if (has_data_) event_.data += '\n';
        event_.data += value;
        has_data_ = true;
    }
}

}  // namespace nibble
