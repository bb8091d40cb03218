// Routes that return information: models, health, versions, metrics, NIM's metadata.
#include "base/embedded.h"
#include "base/sha256.h"
#include "server/metrics.h"
#include "server/routes.h"

#include <fmt/format.h>

#include <cmath>

namespace nibble {
namespace {

// Returns the default parameters of a request.
Json default_sampling(const ServedModel& model) {
    const SamplingParams& s = model.like.sampling;
    Json json{{"temperature", s.temperature},
              {"top_p", s.top_p},
              {"top_k", s.top_k},
              {"min_p", s.min_p},
              {"repetition_penalty", s.repetition_penalty}};
    for (Json& value : json)  // 0.7 instead of 0.699999988079071
        if (value.is_number_float()) value = std::round(value.get<double>() * 1e6) / 1e6;
    json["from_generation_config"] = model.configured_sampling;
    return json;
}

Json models_json(const ServedModel& model) {
    Json list = Json::array();
    for (const std::string& name : model.names) {
        Json permission{{"id", "modelperm-" + name},
                        {"object", "model_permission"},
                        {"created", model.created},
                        {"allow_create_engine", false},
                        {"allow_sampling", true},
                        {"allow_logprobs", true},
                        {"allow_search_indices", false},
                        {"allow_view", true},
                        {"allow_fine_tuning", false},
                        {"organization", "*"},
                        {"group", nullptr},
                        {"is_blocking", false}};
        list.push_back({{"id", name},
                        {"object", "model"},
                        {"created", model.created},
                        {"owned_by", "system"},
                        {"root", model.root},
                        {"parent", nullptr},
                        {"max_model_len", model.context()},
                        {"default_sampling_params", default_sampling(model)},
                        {"permission", Json::array({std::move(permission)})}});
    }
    return {{"object", "list"}, {"data", std::move(list)}};
}

Json metadata_json(const ServedModel& model) {
    Json json{{"version", NIBBLE_VERSION},
              {"repository_override", ""},
              {"selectedModelProfileId", model.names[0]},
              {"assetInfo", Json::array({model.root})},
              {"modelInfo", Json::array({{{"modelUrl", model.root}, {"shortName", model.names[0]}}})},
              {"licenseInfo", Json::object()}};
    if (!model.license.empty())
        json["licenseInfo"] = {{"name", "LICENSE"},
                               {"path", "LICENSE"},
                               {"sha", sha256_hex(model.license)},
                               {"size", model.license.size()},
                               {"type", "file"}};
    return json;
}

Json manifest_json(const ServedModel& model) {
    return {{"model", model.names[0]}, {"root", model.root}, {"profile", model.facts}};
}

void answer_not_ready(HttpExchange& exchange, const ModelPtr& model) {
    exchange.fail({.status = 503,
                   .message = model ? "the server is shutting down" : "the model is being loaded",
                   .retry_seconds = 5});
}

bool is_ready(const HttpExchange& exchange, const ModelPtr& model) { return model && !exchange.core.draining; }

// Answers with information about the model that does not need the engine.
void tell_of(const ExchangePtr& exchange, const ModelPtr& model, Json (*make)(const ServedModel&)) {
    if (model)
        exchange->send(make(*model));
    else
        answer_not_ready(*exchange, model);
}

}  // namespace

std::span<const EmbeddedFile> server_assets_embedded();  // nibble/server/assets/

void answer_page(ExchangePtr exchange, ModelPtr) {
    HttpResponse page{.headers = {{"Content-Type", "text/html; charset=utf-8"},
                                  {"Cache-Control", "no-cache"},
                                  {"Content-Security-Policy",
                                   "default-src 'none'; connect-src 'self'; style-src 'unsafe-inline'; "
                                   "script-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'; "
                                   "frame-ancestors 'none'"}}};
    for (const EmbeddedFile& file : server_assets_embedded())
        if (file.path == "page.html") page.body = std::string(file.content);
    exchange->send(std::move(page));
}

void answer_live(ExchangePtr exchange, ModelPtr) {
    exchange->send(Json{{"object", "health.response"}, {"message", "Service is live."}, {"status", "live"}});
}

void answer_ready(ExchangePtr exchange, ModelPtr model) {
    if (is_ready(*exchange, model))
        exchange->send(Json{{"object", "health.response"}, {"message", "Service is ready."}, {"status", "ready"}});
    else
        answer_not_ready(*exchange, model);
}

void answer_health(ExchangePtr exchange, ModelPtr model) {
    if (is_ready(*exchange, model))
        exchange->send(HttpResponse{});
    else
        answer_not_ready(*exchange, model);
}

void answer_version(ExchangePtr exchange, ModelPtr) { exchange->send(Json{{"version", NIBBLE_VERSION}}); }

void answer_release(ExchangePtr exchange, ModelPtr) {
    exchange->send(Json{{"release", NIBBLE_VERSION}, {"api", "1.0"}});
}

void answer_metrics(ExchangePtr exchange, ModelPtr model) {
    exchange->send(HttpResponse{.headers = {{"Content-Type", "text/plain; version=0.0.4; charset=utf-8"}},
                                .body = metrics_text(exchange->core, model.get())});
}

void answer_tokenizer_info(ExchangePtr exchange, ModelPtr model) {
    tell_of(exchange, model, [](const ServedModel& served) { return served.tokenizer_info; });
}
void answer_models(ExchangePtr exchange, ModelPtr model) { tell_of(exchange, model, models_json); }
void answer_metadata(ExchangePtr exchange, ModelPtr model) { tell_of(exchange, model, metadata_json); }
void answer_manifest(ExchangePtr exchange, ModelPtr model) { tell_of(exchange, model, manifest_json); }

void answer_model(ExchangePtr exchange, ModelPtr model) {
    if (!model) {
        answer_not_ready(*exchange, model);
        return;
    }
    const Json all = models_json(*model);
    for (const Json& one : all["data"])
        if (exchange->request.path == "/v1/models/" + one["id"].get<std::string>()) {
            exchange->send(one);
            return;
        }
    exchange->fail({.status = 404, .message = "The model does not exist.", .code = "model_not_found"});
}

void answer_license(ExchangePtr exchange, ModelPtr model) {
    if (!model)
        answer_not_ready(*exchange, model);
    else if (model->license.empty())
        exchange->fail({.status = 404, .message = "the model has no license file"});
    else
        exchange->send(
            HttpResponse{.headers = {{"Content-Type", "text/plain; charset=utf-8"}}, .body = model->license});
}

}  // namespace nibble
