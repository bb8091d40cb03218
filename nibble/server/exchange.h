// State that all routes share, and one HTTP request with the means to answer it.
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

// A queue of work for a few threads, in order of arrival. post() returns false when the queue is full.
class IntakeQueue {
public:
    explicit IntakeQueue(int threads, size_t most = 4096);  // most: work items that may wait
    ~IntakeQueue();                                         // drops work that has not started
    bool post(std::function<void()> work);

private:
    void loop();
    void end_threads();
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
    IntakeQueue heavy{1, std::numeric_limits<size_t>::max()};  // serializes answers that take long to make

    std::shared_ptr<const ServedModel> model() const {
        const std::lock_guard lock(mutex);
        return served;
    }
    mutable std::mutex mutex;
    std::shared_ptr<const ServedModel> served;  // null: the model is being loaded
    std::set<std::string> noted;                // lines written by note_once()
    std::shared_ptr<NewWeights>
        update;  // update begun by POST /start_weight_update; used by the thread of commands alone
};

int64_t unix_seconds();
// Returns 32 hexadecimal digits.
std::string random_id();

// One HTTP request. Every path must end in an answer or a closed connection.
class HttpExchange {
public:
    HttpExchange(ServerCore& core, HttpRequest request, std::shared_ptr<HttpAnswer> answer);

    ServerCore& core;
    HttpRequest request;
    std::shared_ptr<HttpAnswer> answer;
    std::string id;     // the client's X-Request-Id, or a generated id
    std::string trace;  // the client's traceparent; empty: none, or not valid
    std::chrono::steady_clock::time_point start = std::chrono::steady_clock::now();
    Json notes = Json::object();   // additional members of the log line
    Json body;                     // an object, for routes with a body; the reader may move it away
    size_t body_bytes = 0;         // size of its text
    std::shared_ptr<void> memory;  // reservation for the answer, held until it is sent
    bool heavy = false;            // the answer may take long to make
    // Deadline of the whole request, from its last byte to the last byte of the answer: its `timeout` and the server's
    // limit.
    std::optional<std::chrono::steady_clock::time_point> deadline;

    ApiStyle style() const { return style_of_path(request.path); }
    void send(const Json& json);
    void send(HttpResponse response);
    void fail(const ApiError& error);
    bool begin_stream();
    // Writes the request's log line, once.
    void log(int status);

private:
    void add_headers(HttpResponse& response) const;
    std::atomic<bool> logged_{false};
};
using ExchangePtr = std::shared_ptr<HttpExchange>;
using ModelPtr = std::shared_ptr<const ServedModel>;

// Sets the exchange's body and deadline. Returns false after sending an error to the client: the body is not a JSON
// object, or names another model.
bool read_body(HttpExchange& exchange, const ServedModel& model);
inline constexpr double most_timeout = 1e9;                    // most value of "timeout", in seconds
inline constexpr int64_t most_body_values = int64_t{4} << 20;  // most JSON values in a body

}  // namespace nibble
