// Every route of the server, in one table: what is not in it is 404, a method that a route does not take 405.
#pragma once

#include "server/exchange.h"

#include <span>

namespace nibble {

// get: tells; on the HTTP server's thread, whether the model is there or not. post: takes a body; on a thread of the
// intake, once the model is there. get_or_post: as get, for probes that post. get_or_delete: on a
// thread of the intake, without a body.
enum class RouteMethods : uint8_t { get, post, get_or_post, get_or_delete };

struct Route {
    std::string_view path;  // "/*" at its end: whatever follows the slash
    RouteMethods methods;
    void (*answer)(ExchangePtr exchange, ModelPtr model);

    bool has_path(std::string_view asked) const;
    bool takes(std::string_view method) const;
    std::string_view allow() const;  // the methods, as the header Allow has them
};

std::span<const Route> all_routes();
// The one that was asked for; null: there is none that takes this, and the client has been told.
const Route* find_route(HttpExchange& exchange);

// Each answers, or tells the client why not.
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

}  // namespace nibble
