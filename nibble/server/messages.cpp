// POST /v1/messages and /v1/messages/count_tokens of Anthropic's API: texts, tools and thinking.
#include "server/answer_json.h"
#include "server/parameters.h"
#include "server/routes.h"
#include "server/tool_turn.h"

namespace nibble {
namespace {

struct MessageWish {
    MessagesTurn turn;
    Request request;
    bool stream = false;
};

Result<MessageWish> read_message(BodyFields& fields, const ServedModel& model, bool ignore_unknown) {
    MessageWish wish;
    wish.request = model.like;
    Request& request = wish.request;
    NIBBLE_TRY(wish.turn, read_messages_turn(fields, model, most_prompt_tokens(model)));
    if (!fields.has("max_tokens")) return fields.bad("max_tokens", "is missing");
    NIBBLE_CHECK(read_sampling(fields, model, request));
    NIBBLE_CHECK(fields.read_in("max_tokens", request.max_tokens, int64_t{1}, int64_t{1} << 40));
    NIBBLE_CHECK(read_stop(fields, "stop_sequences", request));
    if (request.choices != 1) return fields.bad("n", "is not a parameter of this API");
    NIBBLE_CHECK(fields.read("stream", wish.stream));
    const ChatTurn& chat = wish.turn.chat;
    if (const Status held = hold_answer(chat, model, nullptr, request); !held.ok())
        return fields.bad(chat.asked.tools.is_null() ? "thinking" : "tools", held.error().message());
    request.prompt = chat.prompt.tokens;
    NIBBLE_CHECK(check_fits(fields, "messages", model, request.prompt));
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
          thinking_(wish.turn.thinking),
          prompt_tokens_(std::ssize(wish.request.prompt)),
          reader_(wish.turn.chat.reader()) {}

    void begin() override {
        if (!stream_) return;
        out_.begin();
        Json message = head();
        message["usage"] = usage(0, 0);
        out_.event("message_start", {{"type", "message_start"}, {"message", std::move(message)}});
    }

    void event(const HeardEvent& e) override {
        std::vector<AnswerPart> parts = reader_.push(e.text);
        if (e.finish != FinishReason::none) {
            for (AnswerPart& part : reader_.finish(e.finish == FinishReason::length)) parts.push_back(std::move(part));
            end_ = e;
        }
        for (const AnswerPart& part : parts) add(part);
    }

    void finish(const RequestReport& total) override {
        if (blocks_.empty()) open({{"type", "text"}, {"text", ""}});
        close();
        if (stream_) {
            out_.event("message_delta", {{"type", "message_delta"},
                                         {"delta", {{"stop_reason", reason()}, {"stop_sequence", sequence()}}},
                                         {"usage", usage(total.generated_tokens, total.cached_tokens)}});
            out_.event("message_stop", {{"type", "message_stop"}, {"timings", timings_json(total)}});
            out_.done(false);
            out_.log(200);
            return;
        }
        Json message = head();
        message["content"] = content();
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
    void add(const AnswerPart& part) {
        switch (part.kind) {
            case AnswerPart::Kind::reasoning:
                if (!thinking_) break;
                if (!open_ || blocks_.back()["type"] != "thinking")
                    open({{"type", "thinking"}, {"thinking", ""}, {"signature", ""}});
                text_ += part.text;
                delta({{"type", "thinking_delta"}, {"thinking", part.text}});
                break;
            case AnswerPart::Kind::content:
                if (!open_ || blocks_.back()["type"] != "text") open({{"type", "text"}, {"text", ""}});
                text_ += part.text;
                delta({{"type", "text_delta"}, {"text", part.text}});
                break;
            case AnswerPart::Kind::tool_begin:
                open({{"type", "tool_use"}, {"id", part.id}, {"name", part.name}, {"input", Json::object()}});
                break;
            case AnswerPart::Kind::tool_arguments:
                text_ += part.text;
                delta({{"type", "input_json_delta"}, {"partial_json", part.text}});
                break;
            case AnswerPart::Kind::tool_end:
                close();
                break;
        }
    }
    // Begins the next block of the answer and ends the one before.
    void open(Json block) {
        close();
        if (stream_)
            out_.event("content_block_start",
                       {{"type", "content_block_start"}, {"index", blocks_.size()}, {"content_block", block}});
        blocks_.push_back(std::move(block));
        open_ = true;
    }
    void delta(Json change) {
        if (stream_)
            out_.event("content_block_delta",
                       {{"type", "content_block_delta"}, {"index", blocks_.size() - 1}, {"delta", std::move(change)}});
    }
    void close() {
        if (!open_) return;
        open_ = false;
        Json& block = blocks_.back();
        const std::string type = block["type"];
        block[type == "tool_use" ? "input" : type] = std::exchange(text_, {});
        if (stream_) out_.event("content_block_stop", {{"type", "content_block_stop"}, {"index", blocks_.size() - 1}});
    }
    // Returns the content with arguments as objects. A call that was cut off by max_tokens has no valid arguments and
    // is left out.
    Json content() const {
        Json list = Json::array();
        for (Json block : blocks_) {
            if (block["type"] == "tool_use") {
                auto input = parse_json(block["input"].get_ref<const std::string&>());
                if (!input.ok() || !input->is_object()) continue;
                block["input"] = *std::move(input);
            }
            list.push_back(std::move(block));
        }
        return list;
    }
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
        if (reader_.called_tools()) return "tool_use";
        return end_.stop.empty() ? "end_turn" : "stop_sequence";
    }
    Json sequence() const { return end_.stop.empty() ? Json(nullptr) : Json(end_.stop); }

    ExchangePtr exchange_;
    ModelPtr model_;
    SseOut out_;
    bool stream_, thinking_;
    int64_t prompt_tokens_;
    AnswerParser reader_;
    std::vector<Json> blocks_;  // blocks of the answer; the "input" of a call is text
    bool open_ = false;         // the last block is not finished
    std::string text_;          // text of the last block
    HeardEvent end_;
};

}  // namespace

void answer_messages(ExchangePtr exchange, ModelPtr model) {
    const Json body = std::move(exchange->body);
    BodyFields fields(body, exchange->deadline);
    auto wish = read_message(fields, *model, exchange->core.options.ignore_unknown);
    if (!wish.ok()) {
        exchange->fail(fields.client_error(wish.error()));
        return;
    }
    note_unwritten_tools(*exchange, wish->turn.chat);
    const AnswerForms form{.whole = !wish->stream, .copied = copied_tools(*exchange, wish->turn.chat)};
    if (!count_answer(*exchange, *model, wish->request, {&wish->request.prompt, 1}, form)) return;
    auto writer = std::make_unique<MessageWriter>(exchange, model, *wish);
    std::make_shared<LiveRequest>(exchange, model, std::move(writer))->submit(std::move(wish->request));
}

void answer_count_tokens(ExchangePtr exchange, ModelPtr model) {
    const Json body = std::move(exchange->body);
    BodyFields fields(body, exchange->deadline);
    const auto turn = read_messages_turn(fields, *model, MeterLimits::unlimited);
    if (turn.ok())
        exchange->send(Json{{"input_tokens", turn->chat.prompt.tokens.size()}});
    else
        exchange->fail(fields.client_error(turn.error()));
}

}  // namespace nibble
