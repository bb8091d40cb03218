#include "server/model_server.h"

#include "server/routes.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <new>

namespace nibble {
namespace {

// Time that does not depend on how much of the key is right.
bool equal_in_constant_time(std::string_view given, std::string_view key) {
    size_t different = given.size() ^ key.size();
    for (size_t i = 0; i < given.size(); ++i)
        different |= static_cast<unsigned char>(given[i] ^ key[key.empty() ? 0 : i % key.size()]);
    return different == 0;
}

bool has_key(const HttpRequest& request, const std::vector<std::string>& keys) {
    if (keys.empty()) return true;
    std::string_view given = request.header("authorization");
    if (given.starts_with("Bearer ") || given.starts_with("bearer "))
        given.remove_prefix(7);
    else
        given = request.header("x-api-key");
    bool found = false;
    for (const std::string& key : keys) found |= equal_in_constant_time(given, key);
    return found && !given.empty();
}

// What probes, scrapers and the page itself ask without a key.
bool open_to_all(std::string_view path) {
    return !(path.starts_with("/v1/") || path == "/tokenize" || path == "/detokenize" || path == "/tokenizer_info") ||
           path.starts_with("/v1/health/") || path == "/v1/metrics";
}

// Whether reading the request may cost far more than its bytes: it brings a program for the template engine, or a
// language to compile.
bool brings_work(const Json& body) {
    static constexpr std::array names{"chat_template",
                                      "response_format",
                                      "structured_outputs",
                                      "guided_json",
                                      "guided_regex",
                                      "guided_choice",
                                      "guided_grammar",
                                      "regex",
                                      "ebnf",
                                      "json_schema",
                                      "grammar",
                                      "nvext",
                                      "text"};
    const auto set = [&](const char* name) {
        const auto found = body.find(name);
        return found != body.end() && !found->is_null();
    };
    if (std::ranges::any_of(names, set)) return true;
    return set("tool_choice") && body["tool_choice"] != "auto" && body["tool_choice"] != "none";
}

// A list of header names and nothing else, of a length that is no burden.
bool is_header_list(std::string_view text) {
    constexpr std::string_view others = "!#$%&'*+-.^_`|~, ";
    return !text.empty() && text.size() <= 4096 && std::ranges::all_of(text, [&](char c) {
        return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
               others.find(c) != others.npos;
    });
}

void answer_preflight(HttpExchange& exchange) {
    HttpResponse response{.status = 204};
    const std::string& allowed = exchange.core.options.cors_origin;
    if (!allowed.empty()) {
        // What the page wants to send: the official clients add a dozen headers that tell of themselves, others with
        // every release, and no header but the key opens anything.
        const std::string_view origin = exchange.request.header("origin");
        const std::string_view wanted = exchange.request.header("access-control-request-headers");
        const bool echoes = (allowed == "*" || origin == allowed) && is_header_list(wanted);
        response.headers.emplace_back("Access-Control-Allow-Methods", "GET, POST, DELETE, OPTIONS");
        response.headers.emplace_back(
            "Access-Control-Allow-Headers",
            echoes ? std::string(wanted) : "Authorization, Content-Type, X-Api-Key, X-Request-Id, Anthropic-Version");
        response.headers.emplace_back("Vary", "Access-Control-Request-Headers");
        response.headers.emplace_back("Access-Control-Max-Age", "86400");
    }
    response.headers.emplace_back("Allow", "GET, POST, DELETE, OPTIONS");
    exchange.send(std::move(response));
}

}  // namespace

struct ModelServer::State {
    ServerCore core;
    std::unique_ptr<HttpServer> http;
    std::unique_ptr<IntakeQueue> intake, costly;

    void route(HttpRequest request, std::shared_ptr<HttpAnswer> answer) {
        ++core.counts.http_requests;
        auto exchange = std::make_shared<HttpExchange>(core, std::move(request), std::move(answer));
        if (exchange->request.method == "OPTIONS") {
            answer_preflight(*exchange);
            return;
        }
        if (!open_to_all(exchange->request.path) && !has_key(exchange->request, core.options.api_keys)) {
            exchange->fail(
                {.status = 401, .message = "Unauthorized: a key is missing or wrong", .code = "invalid_api_key"});
            return;
        }
        const ModelPtr model = core.model();
        const Route* const found = find_route(*exchange);
        if (!found) return;
        if (found->methods == RouteMethods::get_or_delete)
            return take(*intake, exchange,
                        [exchange, model, answer_it = found->answer] { answer_it(exchange, model); });
        if (found->methods != RouteMethods::post) {
            found->answer(exchange, model);
            return;
        }
        if (!model || core.draining) {
            exchange->fail({.status = 503,
                            .message = model ? "the server is shutting down" : "the model is being loaded",
                            .retry_seconds = 5});
            return;
        }
        take(*intake, exchange, [this, exchange, model, answer_it = found->answer] {
            if (!read_body(*exchange, *model)) return;
            if (!brings_work(exchange->body)) return answer_it(exchange, model);
            take(*costly, exchange, [exchange, model, answer_it] {
                if (exchange->deadline && std::chrono::steady_clock::now() >= *exchange->deadline)
                    return exchange->fail(late_error());
                answer_it(exchange, model);
            });
        });
    }

    static void take(IntakeQueue& queue, const ExchangePtr& exchange, std::function<void()> work) {
        const bool taken = queue.post([exchange, work = std::move(work)] {
            try {
                work();
            } catch (const std::bad_alloc&) {
                exchange->fail({.status = 503, .message = "no memory is left for the request", .retry_seconds = 5});
            }
        });
        if (!taken)
            exchange->fail(
                {.status = 429, .message = "too many requests wait", .code = "queue_full", .retry_seconds = 1});
    }
};

Result<std::unique_ptr<ModelServer>> ModelServer::listen(ServerOptions options) {
    auto state = std::make_unique<State>();
    State* s = state.get();
    options.limits.error_body = [](int status, std::string_view why) {
        return error_response_of({.status = status, .message = std::string(why)}, ApiStyle::openai);
    };
    s->core.options = std::move(options);
    NIBBLE_TRY(s->http, HttpServer::listen(s->core.options.address, s->core.options.limits,
                                           [s](HttpRequest request, std::shared_ptr<HttpAnswer> answer) {
                                               s->route(std::move(request), std::move(answer));
                                           }));
    s->core.http = s->http.get();
    s->costly = std::make_unique<IntakeQueue>(1);
    s->intake = std::make_unique<IntakeQueue>(2);
    s->http->start();
    return std::unique_ptr<ModelServer>(new ModelServer(std::move(state)));
}

ModelServer::ModelServer(std::unique_ptr<State> state) : state_(std::move(state)) {}

ModelServer::~ModelServer() { drain(std::chrono::steady_clock::now()); }

const HttpAddress& ModelServer::address() const { return state_->http->address(); }

void ModelServer::serve(ServedModel model) {
    model.engine->start();
    auto served = std::make_shared<const ServedModel>(std::move(model));
    const std::lock_guard lock(state_->core.mutex);
    state_->core.served = std::move(served);
}

void ModelServer::drain(std::chrono::steady_clock::time_point deadline) {
    State& s = *state_;
    if (!s.http) return;
    s.core.draining = true;
    // The engine first: its answers travel over connections that are still open.
    if (const ModelPtr model = s.core.model()) model->engine->drain(deadline);
    s.http->drain(std::max(deadline, std::chrono::steady_clock::now() + std::chrono::seconds(2)));
    s.intake.reset();  // first: it hands work over to the other
    s.costly.reset();
    {
        const std::lock_guard lock(s.core.mutex);
        s.core.served.reset();
    }
    s.http.reset();
    s.core.http = nullptr;
}

}  // namespace nibble
