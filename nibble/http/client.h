// A blocking HTTP/1.1 client for tests and `nibble bench serve`. It has one connection, kept alive between requests,
// and is used by one thread at a time (except close() and shut_down_writing()).
#pragma once

#include "http/address.h"
#include "http/message.h"

#include <functional>

namespace nibble {

class HttpClient {
public:
    // `patience` limits the time without a byte in connecting, reading and writing.
    static Result<HttpClient> connect(const HttpAddress& address, std::chrono::milliseconds patience);
    HttpClient(HttpClient&& other) noexcept;
    HttpClient& operator=(HttpClient&& other) noexcept;
    ~HttpClient();

    // Adds Content-Length and Host. Errors: the connection failed or the response is not HTTP; the connection is then
    // unusable. A failure status such as 404 is not an error.
    Result<HttpResponse> send(const HttpRequest& request);
    // Like send() above, but passes the body to `on_piece` as it arrives. If `on_piece` returns false, the connection
    // is closed and the call ends without an error. The returned response has an empty body.
    Result<HttpResponse> send(const HttpRequest& request,
                              const std::function<bool(const HttpResponse& head, std::string_view piece)>& on_piece);

    // Writes raw bytes, for tests with invalid HTTP.
    Status write(std::string_view bytes);
    Result<HttpResponse> receive(std::string_view method = "GET");
    // Reads some bytes; returns an empty string if the peer has closed.
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

// Reads server-sent events from bytes that arrive in pieces.
struct SseEvent {
    std::string name, data;  // several data lines are joined by \n
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
