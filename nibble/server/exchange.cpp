#include "server/exchange.h"

#include "base/fields.h"
#include "base/utf8.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <random>

namespace nibble {
namespace {

bool fit_for_an_id(std::string_view text) {
    return !text.empty() && text.size() <= 128 && std::ranges::all_of(text, [](char c) {
        return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-' || c == '_' ||
               c == '.' || c == ':';
    });
}

// Returns a valid traceparent of W3C's Trace Context (version-trace-parent-flags in lower-case hexadecimal digits);
// empty: there is none, there are several, or it is not valid. Versions after 00 may have more fields.
std::string traceparent_of(const HttpHeaders& headers) {
    const auto named = [](const auto& header) { return header.first == "traceparent"; };
    if (std::ranges::count_if(headers, named) != 1) return {};
    const std::string& text = std::ranges::find_if(headers, named)->second;
    constexpr std::string_view form = "hh-hhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhh-hhhhhhhhhhhhhhhh-hh";
    if (text.size() < form.size() || text.size() > 512) return {};
    for (size_t i = 0; i < form.size(); ++i) {
        const bool hex = (text[i] >= '0' && text[i] <= '9') || (text[i] >= 'a' && text[i] <= 'f');
        if (form[i] == '-' ? text[i] != '-' : !hex) return {};
    }
    const std::string_view version = std::string_view(text).substr(0, 2),
                           more = std::string_view(text).substr(form.size());
    const auto is_zero = [&](size_t at, size_t size) { return text.find_first_not_of('0', at) >= at + size; };
    if (version == "ff" || is_zero(3, 32) || is_zero(36, 16)) return {};
    if (version == "00" ? !more.empty() : !more.empty() && more[0] != '-') return {};
    const auto printable_ascii = [](char c) { return c > ' ' && c < 0x7F; };
    return std::ranges::all_of(more, printable_ascii) ? text : std::string();
}

std::string time_text(std::chrono::system_clock::time_point time) {
    const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(time.time_since_epoch()).count();
    return fmt::format("{:%Y-%m-%dT%H:%M:%S}.{:03}Z", fmt::gmtime(static_cast<std::time_t>(ms / 1000)), ms % 1000);
}

// Returns true if the JSON may contain more than most_body_values values, which need many times the bytes of their
// text. Each value but the first follows a bracket, a comma or a colon.
bool has_many_values(std::string_view json) {
    int64_t values = 1;
    bool quoted = false;
    for (size_t i = 0; i < json.size(); ++i) {
        const char c = json[i];
        if (c == '"') quoted = !quoted;
        if (quoted)
            i += c == '\\';
        else
            values += c == '[' || c == '{' || c == ',';
    }
    return values > most_body_values;
}

}  // namespace

IntakeQueue::IntakeQueue(int threads, size_t most) : most_(most) {
    try {
        for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { loop(); });
    } catch (...) {  // no memory or no further thread
        end_threads();
        throw;
    }
}

IntakeQueue::~IntakeQueue() {
    end_threads();
    work_.clear();
}

void IntakeQueue::end_threads() {
    {
        const std::lock_guard lock(mutex_);
        quit_ = true;
    }
    wake_.notify_all();
    threads_.clear();
}

bool IntakeQueue::post(std::function<void()> work) {
    const std::lock_guard lock(mutex_);
    if (quit_ || work_.size() >= most_) return false;
    work_.push_back(std::move(work));
    wake_.notify_one();
    return true;
}

void IntakeQueue::loop() {
    while (true) {
        std::function<void()> work;
        {
            std::unique_lock lock(mutex_);
            wake_.wait(lock, [&] { return quit_ || !work_.empty(); });
            if (quit_) return;
            work = std::move(work_.front());
            work_.pop_front();
        }
        work();
    }
}

void ServerCore::note_once(const std::string& message) {
    {
        const std::lock_guard lock(mutex);
        if (!noted.insert(message).second || !options.log) return;
    }
    options.log(body_text({{"time", time_text(std::chrono::system_clock::now())}, {"note", message}}));
}

int64_t unix_seconds() {
    return std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch())
        .count();
}

std::string random_id() {
    std::random_device device;
    return fmt::format("{:08x}{:08x}{:08x}{:08x}", device(), device(), device(), device());
}

HttpExchange::HttpExchange(ServerCore& c, HttpRequest r, std::shared_ptr<HttpAnswer> a)
    : core(c), request(std::move(r)), answer(std::move(a)) {
    const std::string_view given = request.header("x-request-id");
    id = fit_for_an_id(given) ? std::string(given) : random_id();
    trace = traceparent_of(request.headers);
}

void HttpExchange::add_headers(HttpResponse& response) const {
    response.headers.emplace_back("X-Request-Id", id);
    if (!trace.empty()) response.headers.emplace_back("Traceparent", trace);
    if (core.options.cors_origin.empty()) return;
    response.headers.emplace_back("Access-Control-Allow-Origin", core.options.cors_origin);
    if (core.options.cors_origin != "*") response.headers.emplace_back("Vary", "Origin");
    response.headers.emplace_back("Access-Control-Expose-Headers", "X-Request-Id, Traceparent");
}

void HttpExchange::send(const Json& json) { send(json_response(json)); }

void HttpExchange::send(HttpResponse response) {
    const int status = response.status;
    add_headers(response);
    if (status >= 400) ++core.counts.http_errors;
    response.held = memory;
    answer->send(std::move(response));
    log(status);
}

void HttpExchange::fail(const ApiError& error) {
    // A message may quote the request, which must not be logged then; the log gets the field or the kind of error
    // instead.
    const bool quiet = error.status < 500 && !core.options.log_prompts;
    notes["error"] = !quiet                 ? printable(error.message, most_quoted)
                     : !error.param.empty() ? printable(error.param, most_quoted)
                     : !error.code.empty()  ? error.code
                                            : openai_type(error.status);
    send(error_response_of(error, style()));
}

bool HttpExchange::begin_stream() {
    HttpResponse head{.headers = {{"Content-Type", "text/event-stream; charset=utf-8"}, {"Cache-Control", "no-cache"}}};
    head.headers.emplace_back("X-Accel-Buffering", "no");  // prevents nginx from buffering the stream
    add_headers(head);
    if (!answer->begin(std::move(head))) return false;
    if (core.options.keep_alive.count() > 0) answer->write_when_idle(": keep-alive\n\n", core.options.keep_alive);
    return true;
}

void HttpExchange::log(int status) {
    if (logged_.exchange(true) || !core.options.log) return;
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    Json line{{"time", time_text(std::chrono::system_clock::now())},
              {"request_id", id},
              {"peer", request.peer},
              {"method", printable(request.method, 16)},
              {"path", printable(request.path, 200)},
              {"status", status},
              {"seconds", std::round(seconds * 1e6) / 1e6}};
    if (!trace.empty()) line["traceparent"] = trace;
    for (const auto& [key, value] : notes.items()) line[key] = value;
    core.options.log(body_text(line));
}

void set_deadline(HttpExchange& exchange) {
    double seconds = exchange.core.options.most_seconds, asked = 0;
    if (const auto timeout = exchange.body.find("timeout");
        timeout != exchange.body.end() && json_value(*timeout, asked) && asked > 0 && asked <= most_timeout)
        seconds = seconds > 0 ? std::min(seconds, asked) : asked;
    if (seconds > 0)
        exchange.deadline = exchange.start + std::chrono::duration_cast<std::chrono::steady_clock::duration>(
                                                 std::chrono::duration<double>(seconds));
}

bool read_body(HttpExchange& exchange, const ServedModel& model) {
    exchange.body_bytes = exchange.request.body.size();
    if (has_many_values(exchange.request.body)) {
        exchange.fail({.message = fmt::format("the body has more than {} values", most_body_values)});
        return false;
    }
    auto parsed = parse_json(exchange.request.body);
    if (!parsed.ok()) {
        exchange.fail({.message = "the body is not JSON: " + parsed.error().message()});
        return false;
    }
    if (exchange.core.options.log_prompts) exchange.notes["body"] = *parsed;
    std::string().swap(exchange.request.body);
    if (!parsed->is_object()) {
        exchange.fail({.message = "the body is not a JSON object"});
        return false;
    }
    if (const auto name = parsed->find("model"); name != parsed->end() && !name->is_null()) {
        if (!name->is_string()) {
            exchange.fail({.message = "'model': is not a text", .param = "model"});
            return false;
        }
        const auto& wanted = name->get_ref<const std::string&>();
        if (std::ranges::find(model.names, wanted) == model.names.end()) {
            exchange.fail({.status = 404,
                           .message = fmt::format("The model `{}` does not exist.", printable(wanted, 200)),
                           .param = "model",
                           .code = "model_not_found"});
            return false;
        }
    }
    exchange.body = *std::move(parsed);
    set_deadline(exchange);
    return true;
}

}  // namespace nibble
