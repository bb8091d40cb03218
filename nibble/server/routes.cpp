#include "server/routes.h"

#include "base/utf8.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace nibble {

std::span<const Route> all_routes() {
    using enum RouteMethods;
    static constexpr std::array table{
        Route{"/v1/chat/completions", post, answer_chat},
        Route{"/v1/completions", post, answer_completions},
        Route{"/v1/messages", post, answer_messages},
        Route{"/v1/messages/count_tokens", post, answer_count_tokens},
        Route{"/v1/responses", post, answer_responses},
        Route{"/v1/responses/*", get_or_delete, answer_stored_response},
        Route{"/v1/chat/completions/render", post, answer_render_chat},
        Route{"/v1/completions/render", post, answer_render_completion},
        Route{"/tokenize", post, answer_tokenize},
        Route{"/detokenize", post, answer_detokenize},
        Route{"/tokenizer_info", get, answer_tokenizer_info},
        Route{"/", get, answer_page},
        Route{"/index.html", get, answer_page},
        Route{"/v1/models", get, answer_models},
        Route{"/v1/models/*", get, answer_model},
        Route{"/health", get, answer_health},
        Route{"/ping", get_or_post, answer_health},
        Route{"/v1/health/live", get, answer_live},
        Route{"/v1/health/ready", get, answer_ready},
        Route{"/version", get, answer_version},
        Route{"/v1/version", get, answer_release},
        Route{"/v1/metadata", get, answer_metadata},
        Route{"/v1/manifest", get, answer_manifest},
        Route{"/v1/license", get, answer_license},
        Route{"/metrics", get, answer_metrics},
        Route{"/v1/metrics", get, answer_metrics},
        Route{"/start_weight_update", command, answer_start_update, true},
        Route{"/update_weights", command, answer_update_weights, true},
        Route{"/finish_weight_update", command, answer_finish_update, true},
        Route{"/update_weights_from_disk", command, answer_update_from_disk, true},
        Route{"/weight_info", get, answer_weight_info, true},
        Route{"/get_world_size", get, answer_world_size, true},
        Route{"/pause", command, answer_pause, true},
        Route{"/resume", command, answer_resume, true},
        Route{"/is_paused", get, answer_is_paused, true},
        Route{"/sleep", command, answer_sleep, true},
        Route{"/wake_up", command, answer_wake_up, true},
        Route{"/is_sleeping", get, answer_is_sleeping, true},
        Route{"/reset_prefix_cache", command, answer_reset_prefix_cache, true},
    };
    return table;
}

const Route* find_route(HttpExchange& exchange) {
    const HttpRequest& asked = exchange.request;
    const auto found =
        std::ranges::find_if(all_routes(), [&](const Route& route) { return route.has_path(asked.path); });
    if (found == all_routes().end())
        exchange.fail({.status = 404, .message = fmt::format("no route {}", printable(asked.path, 200))});
    else if (found->of_weights && !exchange.core.options.weight_routes)
        exchange.fail(
            {.status = 404, .message = fmt::format("{} is a route of `nibble serve --weight-routes`", found->path)});
    else if (!found->takes(asked.method))
        exchange.fail({.status = 405,
                       .message = fmt::format("{} accepts {}", printable(asked.path, 200), found->allow()),
                       .allow = std::string(found->allow())});
    else
        return &*found;
    return nullptr;
}

bool Route::has_path(std::string_view asked) const {
    return path.ends_with("/*") ? asked.starts_with(path.substr(0, path.size() - 1)) : asked == path;
}

bool Route::takes(std::string_view method) const {
    using enum RouteMethods;
    if (method == "POST") return methods == post || methods == get_or_post || methods == command;
    if (method == "DELETE") return methods == get_or_delete;
    return methods != post && methods != command && (method == "GET" || method == "HEAD");
}

std::string_view Route::allow() const {
    switch (methods) {
        case RouteMethods::get:
            return "GET, HEAD, OPTIONS";
        case RouteMethods::post:
        case RouteMethods::command:
            return "POST, OPTIONS";
        case RouteMethods::get_or_delete:
            return "GET, HEAD, DELETE, OPTIONS";
        default:
            return "GET, HEAD, POST, OPTIONS";
    }
}

}  // namespace nibble
