// Routes for a trainer that uses the server for rollouts: new weights, pauses, sleep. Paths and answers are vLLM's;
// /update_weights_from_disk is SGLang's. They run on the thread of commands, one after the other.
#include "server/body_fields.h"
#include "server/routes.h"

#include "base/utf8.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

namespace nibble {
namespace {

enum class QueryKind : uint8_t { text, flag, number, list };
using QueryNames = std::initializer_list<std::pair<std::string_view, QueryKind>>;

Result<Json> query_value_json(const std::string& name, const std::string& value, QueryKind kind) {
    if (kind == QueryKind::flag) {
        if (value == "true" || value == "1") return Json(true);
        if (value == "false" || value == "0") return Json(false);
        return fail(ErrorKind::usage, "'{}': '{}' is not true or false", name, printable(value, 100));
    }
    if (kind == QueryKind::number) {
        int64_t number = 0;
        const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
        if (error != std::errc{} || end != value.data() + value.size())
            return fail(ErrorKind::usage, "'{}': '{}' is not a whole number", name, printable(value, 100));
        return Json(number);
    }
    return Json(value);
}

// Returns the query as a JSON object. Errors: an unknown name; a second value of a name that is not a list.
Result<Json> query_json(const HttpRequest& request, QueryNames names) {
    Json json = Json::object();
    for (const auto& [name, value] : request.query) {
        const std::string_view wanted = name;
        const auto* const known = std::ranges::find_if(names, [wanted](const auto& n) { return n.first == wanted; });
        if (known == names.end())
            return fail(ErrorKind::usage, "'{}': is not a parameter of {}", printable(name, 100), request.path);
        NIBBLE_TRY(Json read, query_value_json(name, value, known->second));
        if (known->second == QueryKind::list) {
            json[name].push_back(std::move(read));
        } else if (json.contains(name)) {
            return fail(ErrorKind::usage, "'{}': occurs twice", name);
        } else {
            json[name] = std::move(read);
        }
    }
    return json;
}

ApiError api_error_of(const Error& error) {
    const int status = error.kind() == ErrorKind::device ? 501 : error.kind() == ErrorKind::memory ? 503 : 400;
    return {.status = status, .message = error.message()};
}

// Sends the answer, or the error of `done`.
void finish(HttpExchange& exchange, const Status& done, const Json& answer) {
    if (!done.ok())
        exchange.fail(api_error_of(done.error()));
    else if (answer.is_null())
        exchange.send(HttpResponse{});  // vLLM's answer has no body
    else
        exchange.send(answer);
}

bool has_json(const HttpRequest& request) {
    return lower_case(request.header("content-type")).starts_with("application/json");
}

Status read_mode(Fields& fields, Unfinished& unfinished) {
    std::string word;
    NIBBLE_CHECK(fields.read("mode", word));
    if (!word.empty()) {
        NIBBLE_TRY(unfinished, parse_unfinished(word));
    }
    return Ok{};
}

// `version`: the name of its field.
Result<WeightUpdate> read_update(Fields& fields, std::string_view version) {
    WeightUpdate how;
    NIBBLE_CHECK(fields.read("recipe", how.recipe));
    NIBBLE_CHECK(fields.read(version, how.version));
    NIBBLE_CHECK(fields.read("partial", how.partial));
    NIBBLE_CHECK(read_mode(fields, how.unfinished));
    return how;
}

// Adds the values of one request to an update that has begun, or replaces the weights at once.
Status update(HttpExchange& exchange, const ServedModel& model) {
    std::shared_ptr<NewWeights>& begun = exchange.core.update;
    if (has_json(exchange.request)) {
        BodyFields body(exchange.body);
        NIBBLE_TRY(const Json* const info, body.object("update_info"));
        if (!info) return body.missing("update_info");
        NIBBLE_CHECK(body.all_read());
        BodyFields fields(*info);
        std::string path;
        NIBBLE_CHECK(fields.need("path", path));
        NIBBLE_TRY(const WeightUpdate how, read_update(fields, "version"));
        NIBBLE_CHECK(fields.all_read());
        return begun ? add_checkpoint(*begun, path) : model.weights->load(how, path);
    }
    NIBBLE_TRY(const Json query, query_json(exchange.request, {{"recipe", QueryKind::text},
                                                               {"version", QueryKind::text},
                                                               {"mode", QueryKind::text},
                                                               {"partial", QueryKind::flag}}));
    Fields fields(query);
    NIBBLE_TRY(const WeightUpdate how, read_update(fields, "version"));
    const Bytes file(reinterpret_cast<const std::byte*>(exchange.request.body.data()), exchange.request.body.size());
    if (begun) {
        auto more = std::make_shared<NewWeights>(*begun);  // after an error the values of earlier requests stay
        NIBBLE_CHECK(add_safetensors(*more, file));
        begun = std::move(more);
        return Ok{};
    }
    const auto weights = std::make_shared<NewWeights>(model.weights->begin());
    NIBBLE_CHECK(add_safetensors(*weights, file));
    return model.weights->commit(how, weights);
}

Status finish_update(HttpExchange& exchange, const ServedModel& model) {
    if (!exchange.core.update)
        return fail(ErrorKind::usage, "no update has begun: POST /start_weight_update comes first");
    BodyFields fields(exchange.body);
    NIBBLE_TRY(const WeightUpdate how, read_update(fields, "weight_version"));
    NIBBLE_CHECK(fields.all_read());
    return model.weights->commit(how, std::exchange(exchange.core.update, nullptr));
}

Status update_from_disk(HttpExchange& exchange, const ServedModel& model) {
    BodyFields fields(exchange.body);
    std::string path;
    NIBBLE_CHECK(fields.need("model_path", path));
    bool abort_all = false;
    NIBBLE_CHECK(fields.read("abort_all_requests", abort_all));
    NIBBLE_CHECK(fields.must_be("flush_cache", true));
    NIBBLE_TRY(WeightUpdate how, read_update(fields, "weight_version"));
    if (abort_all) how.unfinished = Unfinished::cancel;
    fields.ignore({"load_format", "is_async", "torch_empty_cache", "keep_pause", "recapture_cuda_graph", "token_step"});
    NIBBLE_CHECK(fields.all_read());
    return model.weights->load(how, path);
}

// Reads the JSON of a command's body; an empty body is an empty object. Returns false after sending an error.
bool read_command(HttpExchange& exchange, const ServedModel& model) {
    if (exchange.request.body.empty()) exchange.request.body = "{}";
    return read_body(exchange, model);
}

void send_state(HttpExchange& exchange, const ModelPtr& model, Json (*make)(const ServedWeights&)) {
    if (model && model->weights)
        exchange.send(make(*model->weights));
    else
        exchange.fail({.status = 503, .message = "the model is being loaded", .retry_seconds = 5});
}

}  // namespace

void answer_start_update(ExchangePtr exchange, ModelPtr model) {
    exchange->core.update = std::make_shared<NewWeights>(model->weights->begin());
    exchange->send(Json{{"message", "Weight update started"}});
}

void answer_update_weights(ExchangePtr exchange, ModelPtr model) {
    if (has_json(exchange->request) && !read_command(*exchange, *model)) return;
    finish(*exchange, update(*exchange, *model), {{"message", "Weights updated"}});
}

void answer_finish_update(ExchangePtr exchange, ModelPtr model) {
    if (!read_command(*exchange, *model)) return;
    finish(*exchange, finish_update(*exchange, *model), {{"message", "Weight update finished"}});
}

void answer_update_from_disk(ExchangePtr exchange, ModelPtr model) {
    if (!read_command(*exchange, *model)) return;
    finish(*exchange, update_from_disk(*exchange, *model),
           {{"success", true}, {"message", "Succeeded to update model weights."}});
}

void answer_weight_info(ExchangePtr exchange, ModelPtr model) {
    send_state(*exchange, model, [](const ServedWeights& w) { return Json{{"weight_version", w.version()}}; });
}

void answer_world_size(ExchangePtr exchange, ModelPtr) { exchange->send(Json{{"world_size", 1}}); }

void answer_pause(ExchangePtr exchange, ModelPtr model) {
    const auto pause = [&]() -> Status {
        NIBBLE_TRY(const Json query, query_json(exchange->request, {{"mode", QueryKind::text},
                                                                    {"wait_for_inflight_requests", QueryKind::flag},
                                                                    {"clear_cache", QueryKind::flag}}));
        Fields fields(query);
        bool wait = false, clear = true;
        NIBBLE_CHECK(fields.read("wait_for_inflight_requests", wait));
        NIBBLE_CHECK(fields.read("clear_cache", clear));
        Unfinished unfinished = wait ? Unfinished::finish : Unfinished::cancel;
        NIBBLE_CHECK(read_mode(fields, unfinished));
        NIBBLE_CHECK(model->weights->pause(unfinished));
        return clear && unfinished != Unfinished::keep ? model->weights->forget_prefixes() : Status(Ok{});
    };
    finish(*exchange, pause(), {{"status", "paused"}});
}

void answer_resume(ExchangePtr exchange, ModelPtr model) {
    finish(*exchange, model->weights->resume(), {{"status", "resumed"}});
}

void answer_is_paused(ExchangePtr exchange, ModelPtr model) {
    send_state(*exchange, model, [](const ServedWeights& w) { return Json{{"is_paused", w.paused()}}; });
}

void answer_sleep(ExchangePtr exchange, ModelPtr model) {
    const auto sleep = [&]() -> Status {
        NIBBLE_TRY(const Json query,
                   query_json(exchange->request, {{"level", QueryKind::number}, {"mode", QueryKind::text}}));
        Fields fields(query);
        int level = 1;
        Unfinished unfinished = Unfinished::cancel;
        NIBBLE_CHECK(fields.read("level", level));
        NIBBLE_CHECK(read_mode(fields, unfinished));
        return model->weights->sleep(level, unfinished);
    };
    finish(*exchange, sleep(), nullptr);
}

void answer_wake_up(ExchangePtr exchange, ModelPtr model) {
    const auto wake = [&]() -> Status {
        NIBBLE_TRY(const Json query, query_json(exchange->request, {{"tags", QueryKind::list}}));
        bool weights = !query.contains("tags"), cache = weights;
        if (query.contains("tags"))
            for (const Json& tag : query["tags"]) {
                if (tag != "weights" && tag != "kv_cache")
                    return fail(ErrorKind::usage, "'tags': '{}' is not weights or kv_cache",
                                printable(tag.get_ref<const std::string&>(), 100));
                (tag == "weights" ? weights : cache) = true;
            }
        return model->weights->wake(weights, cache);
    };
    finish(*exchange, wake(), nullptr);
}

void answer_is_sleeping(ExchangePtr exchange, ModelPtr model) {
    send_state(*exchange, model, [](const ServedWeights& w) { return Json{{"is_sleeping", w.asleep()}}; });
}

void answer_reset_prefix_cache(ExchangePtr exchange, ModelPtr model) {
    finish(*exchange, model->weights->forget_prefixes(), nullptr);
}

}  // namespace nibble
