// The routes that only tell: models, health, versions, metrics, NIM's metadata.
#include "base/embedded.h"
#include "server/metrics.h"
#include "server/routes.h"

#include <fmt/format.h>

namespace nibble {
namespace {

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
        json["licenseInfo"] = {
            {"name", "LICENSE"}, {"path", model.root + "/LICENSE"}, {"size", model.license.size()}, {"type", "file"}};
    return json;
}

}  // namespace

std::span<const EmbeddedFile> server_assets_embedded();  // nibble/server/assets/

bool answer_info(const ExchangePtr& exchange, const ModelPtr& model) {
    const std::string& path = exchange->request.path;
    const bool ready = model && !exchange->core.draining;
    const auto not_ready = [&] {
        exchange->fail({.status = 503,
                        .message = model ? "the server is shutting down" : "the model is being loaded",
                        .retry_seconds = 5});
    };
    if (path == "/" || path == "/index.html") {
        HttpResponse page{
            .headers = {{"Content-Type", "text/html; charset=utf-8"},
                        {"Cache-Control", "no-cache"},
                        {"Content-Security-Policy",
                         "default-src 'none'; connect-src 'self'; style-src 'unsafe-inline'; "
                         "script-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'; "
                         "frame-ancestors 'none'"}}};
        for (const EmbeddedFile& file : server_assets_embedded())
            if (file.path == "page.html") page.body = std::string(file.content);
        exchange->send(std::move(page));
    } else if (path == "/v1/health/live") {
        exchange->send(Json{{"object", "health.response"}, {"message", "Service is live."}, {"status", "live"}});
    } else if (path == "/v1/health/ready") {
        if (!ready)
            not_ready();
        else
            exchange->send(Json{{"object", "health.response"}, {"message", "Service is ready."}, {"status", "ready"}});
    } else if (path == "/health" || path == "/ping") {
        if (!ready)
            not_ready();
        else
            exchange->send(HttpResponse{});
    } else if (path == "/version" || path == "/v1/version") {
        Json json{{"version", NIBBLE_VERSION}};
        if (path == "/v1/version") json = {{"release", NIBBLE_VERSION}, {"api", "1.0"}};
        exchange->send(json);
    } else if (path == "/metrics" || path == "/v1/metrics") {
        exchange->send(HttpResponse{.headers = {{"Content-Type", "text/plain; version=0.0.4; charset=utf-8"}},
                                    .body = metrics_text(exchange->core, model.get())});
    } else if (!path.starts_with("/v1/models") && path != "/v1/metadata" && path != "/v1/license" &&
               path != "/v1/manifest") {
        return false;
    } else if (!model) {
        not_ready();
    } else if (path == "/v1/metadata") {
        exchange->send(metadata_json(*model));
    } else if (path == "/v1/manifest") {
        exchange->send(Json{{"model", model->names[0]}, {"root", model->root}, {"profile", model->facts}});
    } else if (path == "/v1/license") {
        if (model->license.empty())
            exchange->fail({.status = 404, .message = "no licence came with the model"});
        else
            exchange->send(
                HttpResponse{.headers = {{"Content-Type", "text/plain; charset=utf-8"}}, .body = model->license});
    } else {
        const Json all = models_json(*model);
        if (path == "/v1/models") {
            exchange->send(all);
            return true;
        }
        for (const Json& one : all["data"])
            if (path == "/v1/models/" + one["id"].get<std::string>()) {
                exchange->send(one);
                return true;
            }
        exchange->fail({.status = 404, .message = "The model does not exist.", .code = "model_not_found"});
    }
    return true;
}

}  // namespace nibble
