// POST /tokenize, /detokenize, and the prompts after the chat template (…/render).
#include "server/chat_turn.h"
#include "server/routes.h"

namespace nibble {
namespace {

Result<Json> tokenized(BodyFields& fields, const ServedModel& model) {
    bool strings = false;
    NIBBLE_CHECK(fields.read("return_token_strs", strings));
    std::vector<int32_t> tokens;
    if (fields.has("messages")) {
        if (fields.has("prompt")) return fields.bad("prompt", "and 'messages' cannot be used together");
        NIBBLE_TRY(ChatTurn turn, read_chat_turn(fields, model, MeterLimits::unlimited));
        tokens = std::move(turn.prompt.tokens);
    } else {
        std::string prompt;
        bool special = true;
        if (!fields.has("prompt")) return fields.bad("prompt", "is missing");
        NIBBLE_CHECK(fields.read("prompt", prompt));
        NIBBLE_CHECK(fields.read("add_special_tokens", special));
        auto ids = model.tokenizer.encode(prompt, {.add_special = special});
        if (!ids.ok()) return fields.bad("prompt", ids.error().message());
        tokens.assign(ids->begin(), ids->end());
    }
    fields.ignore({"model"});
    NIBBLE_CHECK(fields.all_read());
    Json json{{"count", tokens.size()}, {"max_model_len", model.context()}, {"tokens", tokens}};
    if (strings) {
        Json texts = Json::array();
        for (const int32_t id : tokens) texts.push_back(model.tokenizer.token(static_cast<TokenId>(id)).value_or(""));
        json["token_strs"] = std::move(texts);
    }
    return json;
}

Result<Json> detokenized(BodyFields& fields, const ServedModel& model) {
    std::vector<int32_t> tokens;
    if (!fields.has("tokens")) return fields.bad("tokens", "is missing");
    NIBBLE_CHECK(fields.read("tokens", tokens));
    fields.ignore({"model"});
    NIBBLE_CHECK(fields.all_read());
    std::vector<TokenId> ids;
    for (const int32_t id : tokens) {
        if (id < 0 || id >= model.vocab())
            return fields.bad("tokens", fmt::format("{} is not in [0, {})", id, model.vocab()));
        ids.push_back(static_cast<TokenId>(id));
    }
    return Json{{"prompt", model.tokenizer.decode(ids)}};
}

// NIM's route: returns the prompt after the chat template, and its tokens. Other fields of the body are ignored.
Result<Json> rendered(BodyFields& fields, const ServedModel& model) {
    NIBBLE_TRY(const ChatTurn turn, read_chat_turn(fields, model, MeterLimits::unlimited));
    return Json{{"model", model.names[0]}, {"prompt", turn.prompt.text}, {"prompt_token_ids", turn.prompt.tokens}};
}

Result<Json> rendered_completion(BodyFields& fields, const ServedModel& model) {
    std::string prompt;
    bool special = true;
    if (!fields.has("prompt")) return fields.bad("prompt", "is missing");
    NIBBLE_CHECK(fields.read("prompt", prompt));
    NIBBLE_CHECK(fields.read("add_special_tokens", special));
    auto ids = model.tokenizer.encode(prompt, {.add_special = special});
    if (!ids.ok()) return fields.bad("prompt", ids.error().message());
    return Json{{"model", model.names[0]}, {"prompt", prompt}, {"prompt_token_ids", *ids}};
}

void tell(HttpExchange& exchange, const ServedModel& model, Result<Json> (*make)(BodyFields&, const ServedModel&)) {
    const Json body = std::move(exchange.body);
    BodyFields fields(body, exchange.deadline);
    const auto json = make(fields, model);
    if (json.ok())
        exchange.send(*json);
    else
        exchange.fail(fields.client_error(json.error()));
}

}  // namespace

void answer_tokenize(ExchangePtr exchange, ModelPtr model) { tell(*exchange, *model, tokenized); }
void answer_render_chat(ExchangePtr exchange, ModelPtr model) { tell(*exchange, *model, rendered); }
void answer_render_completion(ExchangePtr exchange, ModelPtr model) { tell(*exchange, *model, rendered_completion); }
void answer_detokenize(ExchangePtr exchange, ModelPtr model) { tell(*exchange, *model, detokenized); }

}  // namespace nibble
