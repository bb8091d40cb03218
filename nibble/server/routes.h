// The routes that take a body. Each answers, or tells the client why not; called on a thread of the intake.
#pragma once

#include "server/exchange.h"

namespace nibble {

void answer_completions(ExchangePtr exchange, ModelPtr model);
void answer_chat(ExchangePtr exchange, ModelPtr model);
void answer_messages(ExchangePtr exchange, ModelPtr model);
void answer_count_tokens(ExchangePtr exchange, ModelPtr model);
void answer_responses(ExchangePtr exchange, ModelPtr model);
void answer_render_chat(ExchangePtr exchange, ModelPtr model);
void answer_render_completion(ExchangePtr exchange, ModelPtr model);
void answer_tokenize(ExchangePtr exchange, ModelPtr model);
void answer_detokenize(ExchangePtr exchange, ModelPtr model);

// The routes that only tell; on the HTTP server's thread. False: no such route.
bool answer_info(const ExchangePtr& exchange, const ModelPtr& model);

}  // namespace nibble
