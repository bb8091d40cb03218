// An HTTP/1.1 client that blocks: for tests and for `nibble bench serve`. One connection, kept alive between requests;
// used by one thread at a time (close() and shut_down() apart).
#pragma once

#include "http/address.h"
#include "http/message.h"

#include <functional>

namespace nibble {

class HttpClient {
public:
    // `patience`: the longest time without a byte, for connecting, reading and writing.
    static Result<HttpClient> connect(const HttpAddress& address, std::chrono::milliseconds patience);
    HttpClient(HttpClient&& other) noexcept;
    HttpClient& operator=(HttpClient&& other) noexcept;
    ~HttpClient();

    // Content-Length and Host are added. Error: the connection's, or an answer that is not HTTP; the connection is then
    // of no more use. Statuses of failure are no errors.
    Result<HttpResponse> send(const HttpRequest& request);
    // The same, with the body in pieces as they come; `on_piece` returning false closes the connection and ends the
    // call without an error. The body of the response that is returned is empty.
    Result<HttpResponse> send(const HttpRequest& request,
                              const std::function<bool(const HttpResponse& head, std::string_view piece)>& on_piece);

    // Bytes as they are, for tests of what is not HTTP.
    Status write(std::string_view bytes);
    Result<HttpResponse> receive(std::string_view method = "GET");
    // Some bytes; empty: the peer has closed.
    Result<std::string> read_some();
    void shut_down_writing();
    bool open() const { return fd_ >= 0; }
    void close();

private:
    HttpClient(int fd, HttpAddress address, std::chrono::milliseconds patience);
    Result<HttpResponse> receive_pieces(std::string_view method,
                                        const std::function<bool(const HttpResponse&, std::string_view)>& on_piece);
    int fd_ = -1;
    HttpAddress address_;
    std::chrono::milliseconds patience_{0};
    std::string unread_;
};

// Server-sent events from bytes that come in pieces.
struct SseEvent {
    std::string name, data;  // lines of data are joined by \n
};
class SseReader {
public:
    void push(std::string_view bytes, const std::function<void(const SseEvent&)>& on_event);
    int64_t comments() const { return comments_; }

private:
    std::string line_;
    SseEvent event_;
    bool has_data_ = false;
    int64_t comments_ = 0;
};

}  // namespace nibble
