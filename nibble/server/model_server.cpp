#include "server/model_server.h"

#include "server/access.h"
#include "server/routes.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <new>

namespace nibble {
namespace {

// Returns true if the request may cost far more than its size: it contains a template to run, or a schema or grammar to
// compile.
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

// Returns true if the text is a list of header names, of bounded length.
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
        // Allows all headers that the page asks for. Official clients add a dozen descriptive headers, which
        // change with every release, and no header except the key grants access.
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
    std::unique_ptr<IntakeQueue> intake, costly, commands;

    void route(HttpRequest request, std::shared_ptr<HttpAnswer> answer) {
        ++core.counts.http_requests;
        auto exchange = std::make_shared<HttpExchange>(core, std::move(request), std::move(answer));
        if (exchange->request.method == "OPTIONS") {
            answer_preflight(*exchange);
            return;
        }
        if (const auto refused = access_error(exchange->request, core.options)) {
            exchange->fail(*refused);
            return;
        }
        const ModelPtr model = core.model();
        const Route* const found = find_route(*exchange);
        if (!found) return;
        if (found->methods == RouteMethods::get_or_delete) {  // a stored answer may be long
            take(core.heavy, exchange, [exchange, model, answer_it = found->answer] { answer_it(exchange, model); });
            return;
        }
        if (found->methods != RouteMethods::post && found->methods != RouteMethods::command) {
            found->answer(exchange, model);
            return;
        }
        if (!model || core.draining) {
            exchange->fail({.status = 503,
                            .message = model ? "the server is shutting down" : "the model is being loaded",
                            .retry_seconds = 5});
            return;
        }
        if (found->methods == RouteMethods::command) {
            take(*commands, exchange,
                 [exchange, model, answer_it = found->answer] { answer_from(answer_it, exchange, model); });
            return;
        }
        take(*intake, exchange, [this, exchange, model, answer_it = found->answer] {
            if (!read_body(*exchange, *model)) return;
            if (!brings_work(exchange->body)) return answer_from(answer_it, exchange, model);
            take(*costly, exchange, [exchange, model, answer_it] {
                if (exchange->deadline && std::chrono::steady_clock::now() >= *exchange->deadline)
                    return exchange->fail(late_error());
                answer_from(answer_it, exchange, model);
            });
        });
    }

    // A route is done with the body when it returns, so its memory is no longer counted.
    static void answer_from(void (*answer_it)(ExchangePtr, ModelPtr), const ExchangePtr& exchange,
                            const ModelPtr& model) {
        answer_it(exchange, model);
        exchange->request.held.reset();
    }

    static void take(IntakeQueue& queue, const ExchangePtr& exchange, std::function<void()> work) {
        const bool taken = queue.post([exchange, work = std::move(work)] {
            try {
                work();
            } catch (const std::bad_alloc&) {
                exchange->fail(
                    {.status = 503, .message = "the server is out of memory for the request", .retry_seconds = 5});
            }
        });
        if (!taken)
            exchange->fail(
                {.status = 429, .message = "too many requests are waiting", .code = "queue_full", .retry_seconds = 1});
    }
};

Result<std::unique_ptr<ModelServer>> ModelServer::listen(ServerOptions options) {
    auto state = std::make_unique<State>();
    State* s = state.get();
    options.limits.error_body = [](int status, std::string_view why) {
        return error_response_of({.status = status, .message = std::string(why)}, ApiStyle::openai);
    };
    s->core.memory = AnswerMemory(options.requests_bytes);
    s->core.options = std::move(options);
    NIBBLE_TRY(s->http, HttpServer::listen(s->core.options.address, s->core.options.limits,
                                           [s](HttpRequest request, std::shared_ptr<HttpAnswer> answer) {
                                               s->route(std::move(request), std::move(answer));
                                           }));
    s->core.http = s->http.get();
    s->costly = std::make_unique<IntakeQueue>(1);
    s->intake = std::make_unique<IntakeQueue>(2);
    s->commands = std::make_unique<IntakeQueue>(1, 64);
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
    // The engine is drained first, while connections are still open for its answers.
    if (const ModelPtr model = s.core.model()) model->engine->drain(deadline);
    s.http->drain(std::max(deadline, std::chrono::steady_clock::now() + std::chrono::seconds(2)));
    s.intake.reset();  // stopped first, because it passes work on to the other queue
    s.costly.reset();
    s.commands.reset();
    s.core.update.reset();
    {
        const std::lock_guard lock(s.core.mutex);
        s.core.served.reset();
    }
    s.http.reset();
    s.core.http = nullptr;
}

}  // namespace nibble
