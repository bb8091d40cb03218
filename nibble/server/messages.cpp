// POST /v1/messages and /v1/messages/count_tokens: Anthropic's API, texts.
#include "server/answer_json.h"
#include "server/chat_turn.h"
#include "server/parameters.h"
#include "server/routes.h"

namespace nibble {
namespace {

struct MessageWish {
    ChatTurn turn;
    Request request;
    bool stream = false;
};

// The system prompt stands outside of the messages, which alone have roles.
Result<ChatTurn> read_message_turn(BodyFields& fields, const ServedModel& model) {
    const Json* given = fields.find("messages");
    if (!given || !given->is_array() || given->empty()) return fields.bad("messages", "is not a list of messages");
    if (const Json* tools = fields.find("tools"); tools && !(tools->is_array() && tools->empty()))
        return fields.bad("tools", "is not supported");
    for (const char* name : {"tool_choice", "thinking", "mcp_servers", "container", "output_config", "output_format"}) {
        const Json* value = fields.find(name);
        if (value && *value != Json{{"type", "disabled"}} && *value != Json{{"type", "none"}})
            return fields.bad(name, "is not supported");
    }
    const Json& last = given->back();
    if (last.is_object() && last.contains("role") && last["role"] == "assistant")
        return fields.bad("messages", "an answer that goes on from the last message is not supported");
    Json messages = Json::array();
    if (const Json* system = fields.find("system")) {
        if (!system->is_string() && !system->is_array()) return fields.bad("system", "is no text");
        messages.push_back({{"role", "system"}, {"content", *system}});
    }
    for (const Json& one : *given) messages.push_back(one);
    auto turn = make_chat_turn(model, {.messages = std::move(messages)});
    if (!turn.ok()) return fields.bad("messages", turn.error().message());
    return turn;
}

Result<MessageWish> read_message(BodyFields& fields, const ServedModel& model, bool ignore_unknown) {
    MessageWish wish;
    wish.request = model.like;
    Request& request = wish.request;
    NIBBLE_TRY(wish.turn, read_message_turn(fields, model));
    if (!fields.has("max_tokens")) return fields.bad("max_tokens", "is missing");
    NIBBLE_CHECK(read_sampling(fields, model, request));
    NIBBLE_CHECK(fields.read_in("max_tokens", request.max_tokens, int64_t{1}, int64_t{1} << 40));
    NIBBLE_CHECK(fields.read("stop_sequences", request.stop));
    if (request.choices != 1) return fields.bad("n", "is not of this API");
    NIBBLE_CHECK(fields.read("stream", wish.stream));
    NIBBLE_CHECK(hold_answer(wish.turn, model, nullptr, request));
    request.prompt = wish.turn.prompt.tokens;
    if (const Status fits = check_fits(model, request.prompt); !fits.ok()) {
        fields.blame("messages");
        return fits.error();
    }
    fields.ignore({"context_management", "betas", "inference_geo", "cache_control"});
    if (!ignore_unknown) NIBBLE_CHECK(read_the_rest(fields));
    return wish;
}

class MessageWriter : public AnswerWriter {
public:
    MessageWriter(ExchangePtr exchange, ModelPtr model, const MessageWish& wish)
        : exchange_(std::move(exchange)),
          model_(std::move(model)),
          out_(exchange_),
          stream_(wish.stream),
          prompt_tokens_(std::ssize(wish.request.prompt)),
          reader_(wish.turn.reader()) {}

    void begin() override {
        if (!stream_) return;
        out_.begin();
        Json message = head();
        message["usage"] = usage(0, 0);
        out_.event("message_start", {{"type", "message_start"}, {"message", std::move(message)}});
        out_.event(
            "content_block_start",
            {{"type", "content_block_start"}, {"index", 0}, {"content_block", {{"type", "text"}, {"text", ""}}}});
    }

    void event(const HeardEvent& e) override {
        std::vector<AnswerPart> parts = reader_.push(e.text);
        if (e.finish != FinishReason::none) {
            for (AnswerPart& part : reader_.finish()) parts.push_back(std::move(part));
            end_ = e;
        }
        for (const AnswerPart& part : parts) {
            if (part.kind != AnswerPart::Kind::content) continue;
            text_ += part.text;
            if (stream_)
                out_.event("content_block_delta", {{"type", "content_block_delta"},
                                                   {"index", 0},
                                                   {"delta", {{"type", "text_delta"}, {"text", part.text}}}});
        }
    }

    void finish(const RequestReport& total) override {
        if (stream_) {
            out_.event("content_block_stop", {{"type", "content_block_stop"}, {"index", 0}});
            out_.event("message_delta", {{"type", "message_delta"},
                                         {"delta", {{"stop_reason", reason()}, {"stop_sequence", sequence()}}},
                                         {"usage", usage(total.generated_tokens, total.cached_tokens)}});
            out_.event("message_stop", {{"type", "message_stop"}});
            out_.done(false);
            out_.log(200);
            return;
        }
        Json message = head();
        message["content"] = Json::array({{{"type", "text"}, {"text", text_}}});
        message["stop_reason"] = reason();
        message["stop_sequence"] = sequence();
        message["usage"] = usage(total.generated_tokens, total.cached_tokens);
        message["timings"] = timings_json(total);
        exchange_->send(message);
    }

    void fail(const ApiError& error) override {
        if (!stream_) {
            exchange_->fail(error);
            return;
        }
        out_.event("error", error_json(error, ApiStyle::anthropic));
        out_.done(false);
        out_.log(error.status);
    }

private:
    Json head() const {
        return {{"id", "msg_" + exchange_->id}, {"type", "message"},        {"role", "assistant"},
                {"model", model_->names[0]},    {"content", Json::array()}, {"stop_reason", nullptr},
                {"stop_sequence", nullptr}};
    }
    Json usage(int64_t answer, int64_t cached) const {
        return {{"input_tokens", prompt_tokens_ - cached},
                {"cache_creation_input_tokens", 0},
                {"cache_read_input_tokens", cached},
                {"output_tokens", answer}};
    }
    std::string_view reason() const {
        if (end_.finish == FinishReason::length) return "max_tokens";
        return end_.stop.empty() ? "end_turn" : "stop_sequence";
    }
    Json sequence() const { return end_.stop.empty() ? Json(nullptr) : Json(end_.stop); }

    ExchangePtr exchange_;
    ModelPtr model_;
    SseOut out_;
    bool stream_;
    int64_t prompt_tokens_;
    AnswerParser reader_;
    std::string text_;
    HeardEvent end_;
};

}  // namespace

void answer_messages(ExchangePtr exchange, ModelPtr model) {
    const auto body = read_body(*exchange, *model);
    if (!body) return;
    BodyFields fields(*body);
    auto wish = read_message(fields, *model, exchange->core.options.ignore_unknown);
    if (!wish.ok()) {
        exchange->fail({.message = wish.error().message(), .param = fields.blamed()});
        return;
    }
    auto writer = std::make_unique<MessageWriter>(exchange, model, *wish);
    std::make_shared<LiveRequest>(exchange, model, std::move(writer))->submit({std::move(wish->request)});
}

void answer_count_tokens(ExchangePtr exchange, ModelPtr model) {
    const auto body = read_body(*exchange, *model);
    if (!body) return;
    BodyFields fields(*body);
    const auto turn = read_message_turn(fields, *model);
    if (turn.ok())
        exchange->send(Json{{"input_tokens", turn->prompt.tokens.size()}});
    else
        exchange->fail({.message = turn.error().message(), .param = fields.blamed()});
}

}  // namespace nibble
