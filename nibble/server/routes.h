// The table of all routes. A path that is not in it gets 404; a method that the route does not accept gets 405.
#pragma once

#include "server/exchange.h"

#include <span>

namespace nibble {

// The methods of a route, and where it runs. get: on the HTTP server's thread, also while the model is loaded. post:
// has a body; on an intake thread, once the model is loaded. get_or_post: like get, for probes that use POST.
// get_or_delete: on an intake thread, without a body. command: POST, the body may be anything or absent; one after the
// other on a thread of its own, once the model is loaded.
enum class RouteMethods : uint8_t { get, post, get_or_post, get_or_delete, command };

struct Route {
    std::string_view path;  // "/*" at the end matches any text after the slash
    RouteMethods methods;
    void (*answer)(ExchangePtr exchange, ModelPtr model);
    bool of_weights = false;  // exists only with ServerOptions::weight_routes

    bool has_path(std::string_view asked) const;
    bool takes(std::string_view method) const;
    std::string_view allow() const;  // value of the Allow header
};

std::span<const Route> all_routes();
// Returns the requested route; null: there is none, and an error was sent to the client.
const Route* find_route(HttpExchange& exchange);

// Each function sends an answer or an error.
void answer_page(ExchangePtr exchange, ModelPtr model);
void answer_live(ExchangePtr exchange, ModelPtr model);
void answer_ready(ExchangePtr exchange, ModelPtr model);
void answer_health(ExchangePtr exchange, ModelPtr model);
void answer_version(ExchangePtr exchange, ModelPtr model);
void answer_release(ExchangePtr exchange, ModelPtr model);
void answer_metrics(ExchangePtr exchange, ModelPtr model);
void answer_models(ExchangePtr exchange, ModelPtr model);
void answer_model(ExchangePtr exchange, ModelPtr model);
void answer_metadata(ExchangePtr exchange, ModelPtr model);
void answer_manifest(ExchangePtr exchange, ModelPtr model);
void answer_license(ExchangePtr exchange, ModelPtr model);
void answer_completions(ExchangePtr exchange, ModelPtr model);
void answer_chat(ExchangePtr exchange, ModelPtr model);
void answer_messages(ExchangePtr exchange, ModelPtr model);
void answer_count_tokens(ExchangePtr exchange, ModelPtr model);
void answer_responses(ExchangePtr exchange, ModelPtr model);
void answer_stored_response(ExchangePtr exchange, ModelPtr model);
void answer_render_chat(ExchangePtr exchange, ModelPtr model);
void answer_render_completion(ExchangePtr exchange, ModelPtr model);
void answer_tokenizer_info(ExchangePtr exchange, ModelPtr model);
void answer_tokenize(ExchangePtr exchange, ModelPtr model);
void answer_detokenize(ExchangePtr exchange, ModelPtr model);
void answer_start_update(ExchangePtr exchange, ModelPtr model);
void answer_update_weights(ExchangePtr exchange, ModelPtr model);
void answer_finish_update(ExchangePtr exchange, ModelPtr model);
void answer_update_from_disk(ExchangePtr exchange, ModelPtr model);
void answer_weight_info(ExchangePtr exchange, ModelPtr model);
void answer_world_size(ExchangePtr exchange, ModelPtr model);
void answer_pause(ExchangePtr exchange, ModelPtr model);
void answer_resume(ExchangePtr exchange, ModelPtr model);
void answer_is_paused(ExchangePtr exchange, ModelPtr model);
void answer_sleep(ExchangePtr exchange, ModelPtr model);
void answer_wake_up(ExchangePtr exchange, ModelPtr model);
void answer_is_sleeping(ExchangePtr exchange, ModelPtr model);
void answer_reset_prefix_cache(ExchangePtr exchange, ModelPtr model);

}  // namespace nibble
