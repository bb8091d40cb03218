// What the routes share: the server's state, and one HTTP request with its way back.
#pragma once

#include "server/answer_size.h"
#include "server/api_error.h"
#include "server/model_server.h"
#include "server/response_store.h"

#include <atomic>
#include <condition_variable>
#include <deque>
#include <limits>
#include <mutex>
#include <optional>
#include <set>
#include <string_view>
#include <thread>
#include <vector>

namespace nibble {

// Work for a few threads, in order of arrival; what the queue does not hold is refused.
class IntakeQueue {
public:
    explicit IntakeQueue(int threads, size_t most = 4096);  // most: that wait
    ~IntakeQueue();                                         // drops what was not begun
    bool post(std::function<void()> work);

private:
    void loop();
    std::mutex mutex_;
    std::condition_variable wake_;
    std::deque<std::function<void()>> work_;
    size_t most_;
    bool quit_ = false;
    std::vector<std::jthread> threads_;
};

struct ServerCounts {
    std::atomic<int64_t> http_requests{0}, http_errors{0}, streams{0};
};

struct ServerCore {
    ServerOptions options;
    HttpServer* http = nullptr;
    std::atomic<bool> draining{false};
    ServerCounts counts;
    ResponseStore responses;
    // Writes a line to the log, unless it was written before.
    void note_once(const std::string& message);
    std::chrono::system_clock::time_point started = std::chrono::system_clock::now();
    AnswerMemory memory{0};
    IntakeQueue heavy{1, std::numeric_limits<size_t>::max()};  // makes answers that take long

    std::shared_ptr<const ServedModel> model() const {
        const std::lock_guard lock(mutex);
        return served;
    }
    mutable std::mutex mutex;
    std::shared_ptr<const ServedModel> served;  // null: it is being loaded
    std::set<std::string> noted;                // by note_once()
};

int64_t unix_seconds();
// 32 hexadecimal digits.
std::string random_id();

// One request; whoever holds it last has answered or broken it off.
class HttpExchange {
public:
    HttpExchange(ServerCore& core, HttpRequest request, std::shared_ptr<HttpAnswer> answer);

    ServerCore& core;
    HttpRequest request;
    std::shared_ptr<HttpAnswer> answer;
    std::string id;     // the client's X-Request-Id, or one of our own
    std::string trace;  // the client's traceparent; empty: there is none that is valid
    std::chrono::steady_clock::time_point start = std::chrono::steady_clock::now();
    Json notes = Json::object();   // for the log
    Json body;                     // an object, of routes that take one; who reads it takes it
    size_t body_bytes = 0;         // of its text
    std::shared_ptr<void> memory;  // what is counted for the answer, until it is sent
    bool heavy = false;            // the answer may take long to make
    // Of the whole request, from its last byte to its answer's: its `timeout` and the server's limit.
    std::optional<std::chrono::steady_clock::time_point> deadline;

    ApiStyle style() const { return style_of_path(request.path); }
    void send(const Json& json);
    void send(HttpResponse response);
    void fail(const ApiError& error);
    bool begin_stream();
    // Writes the line of the log, once.
    void log(int status);

private:
    void add_headers(HttpResponse& response) const;
    std::atomic<bool> logged_{false};
};
using ExchangePtr = std::shared_ptr<HttpExchange>;
using ModelPtr = std::shared_ptr<const ServedModel>;

// Sets the exchange's body and deadline. False: it is no JSON object, or asks for another model; the client was told.
bool read_body(HttpExchange& exchange, const ServedModel& model);
inline constexpr double most_timeout = 1e9;                    // seconds
inline constexpr int64_t most_body_values = int64_t{4} << 20;  // of a body's JSON

}  // namespace nibble
