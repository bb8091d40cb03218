// POST /v1/responses: OpenAI's newer API: texts and functions. Nothing is stored: previous_response_id is an error.
#include "server/answer_json.h"
#include "server/parameters.h"
#include "server/routes.h"
#include "server/tool_turn.h"

namespace nibble {
namespace {

struct ResponseWish {
    ChatTurn turn;
    Request request;
    Json echo = Json::object();  // fields of the request that the answer repeats
    bool stream = false;
};

Result<ResponseWish> read_response(BodyFields& fields, const ServedModel& model, bool ignore_unknown) {
    ResponseWish wish;
    wish.request = model.like;
    Request& request = wish.request;
    for (const char* name : {"previous_response_id", "conversation", "prompt", "max_tool_calls"})
        if (fields.has(name)) return fields.bad(name, "is not supported");
    if (const Json* list = fields.find("include")) {
        if (!list->is_array()) return fields.bad("include", "is not a list");
        for (const Json& what : *list)  // reasoning is left out of the answer: there is none to encrypt
            if (what != "reasoning.encrypted_content")
                return fields.bad("include", fmt::format("{} is not supported",
                                                         what.dump(-1, ' ', false, Json::error_handler_t::replace)));
    }
    if (const Json* top = fields.find("top_logprobs"); top && *top != 0)
        return fields.bad("top_logprobs", "is not supported here; /v1/chat/completions has log-probabilities");
    NIBBLE_TRY(wish.turn, read_responses_turn(fields, model));
    GrammarTokensPtr grammar;
    if (const Json* text = fields.find("text")) {
        if (text->contains("format") && !(*text)["format"].is_null()) {
            NIBBLE_CHECK(read_response_format(fields, "text", (*text)["format"], model.grammars.get(), grammar));
            wish.echo["text"] = *text;
        }
    }
    NIBBLE_CHECK(fields.only("background", false));
    NIBBLE_CHECK(fields.only("truncation", "disabled"));
    NIBBLE_CHECK(read_sampling(fields, model, request));
    if (request.choices != 1) return fields.bad("n", "is not of this API");
    NIBBLE_CHECK(fields.read("stream", wish.stream));
    request.prompt = wish.turn.prompt.tokens;
    NIBBLE_CHECK(check_fits(fields, "input", model, request.prompt));
    request.max_tokens = model.context() - std::ssize(request.prompt);
    NIBBLE_CHECK(fields.read_in("max_output_tokens", request.max_tokens, int64_t{1}, int64_t{1} << 40));
    if (const Status held = hold_answer(wish.turn, model, std::move(grammar), request); !held.ok())
        return fields.bad(wish.turn.asked.tools.is_null() ? "text" : "tools", held.error().message());
    const auto repeat = [&](const char* name) {
        const Json* value = fields.find(name);
        wish.echo[name] = value ? *value : Json(nullptr);
    };
    for (const char* name : {"instructions", "max_output_tokens", "metadata"}) repeat(name);
    for (const char* name : {"tools", "tool_choice", "parallel_tool_calls"})
        if (const Json* value = fields.find(name)) wish.echo[name] = *value;
    fields.ignore({"stream_options"});
    if (!ignore_unknown) NIBBLE_CHECK(read_the_rest(fields));
    return wish;
}

class ResponseWriter : public AnswerWriter {
public:
    ResponseWriter(ExchangePtr exchange, ModelPtr model, const ResponseWish& wish)
        : exchange_(std::move(exchange)),
          model_(std::move(model)),
          out_(exchange_),
          echo_(wish.echo),
          sampling_(wish.request.sampling),
          stream_(wish.stream),
          created_(unix_seconds()),
          reader_(wish.turn.reader()) {}

    void begin() override {
        if (!stream_) return;
        out_.begin();
        say("response.created", {{"response", response("in_progress", nullptr)}});
        say("response.in_progress", {{"response", response("in_progress", nullptr)}});
    }

    void event(const HeardEvent& e) override {
        std::vector<AnswerPart> parts = reader_.push(e.text);
        if (e.finish != FinishReason::none) {
            for (AnswerPart& one : reader_.finish(e.finish == FinishReason::length)) parts.push_back(std::move(one));
            cut_ = e.finish == FinishReason::length;
        }
        for (const AnswerPart& one : parts) add(one);
    }

    void finish(const RequestReport& total) override {
        const char* status = cut_ ? "incomplete" : "completed";
        if (items_.empty()) open(message_item());
        close(status);
        Json json = response(status, &total);
        json["timings"] = timings_json(total);
        if (!stream_) {
            exchange_->send(json);
            return;
        }
        say(cut_ ? "response.incomplete" : "response.completed", {{"response", std::move(json)}});
        out_.done(false);
        out_.log(200);
    }

    void fail(const ApiError& error) override {
        if (!stream_) {
            exchange_->fail(error);
            return;
        }
        Json failed = response("failed", nullptr);
        failed["error"] = {{"code", "server_error"}, {"message", error.message}};
        say("response.failed", {{"response", std::move(failed)}});
        out_.done(false);
        out_.log(error.status);
    }

private:
    void say(std::string_view name, Json more) {
        Json json{{"type", name}, {"sequence_number", sequence_++}};
        json.update(more);
        out_.event(name, json);
    }
    void add(const AnswerPart& one) {
        switch (one.kind) {
            case AnswerPart::Kind::reasoning:
                break;
            case AnswerPart::Kind::content:
                if (!open_ || items_.back()["type"] != "message") open(message_item());
                text_ += one.text;
                if (stream_)
                    say("response.output_text.delta", place({{"delta", one.text}, {"logprobs", Json::array()}}));
                break;
            case AnswerPart::Kind::tool_begin:
                open({{"id", fmt::format("fc_{}_{}", exchange_->id, one.index)},
                      {"type", "function_call"},
                      {"status", "in_progress"},
                      {"call_id", one.id},
                      {"name", one.name},
                      {"arguments", ""}});
                break;
            case AnswerPart::Kind::tool_arguments:
                text_ += one.text;
                if (stream_) say("response.function_call_arguments.delta", place({{"delta", one.text}}));
                break;
            case AnswerPart::Kind::tool_end:
                close("completed");
                break;
        }
    }
    Json message_item() const {
        return {
            {"id", items_.empty() ? "msg_" + exchange_->id : fmt::format("msg_{}_{}", exchange_->id, items_.size())},
            {"type", "message"},
            {"role", "assistant"},
            {"status", "in_progress"},
            {"content", Json::array()}};
    }
    // The next item of the output; the one before is complete.
    void open(Json item) {
        close("completed");
        items_.push_back(std::move(item));
        open_ = true;
        if (!stream_) return;
        say("response.output_item.added", {{"output_index", items_.size() - 1}, {"item", items_.back()}});
        if (items_.back()["type"] == "message") say("response.content_part.added", place({{"part", part("")}}));
    }
    void close(std::string_view status) {
        if (!open_) return;
        open_ = false;
        Json& item = items_.back();
        item["status"] = status;
        const bool message = item["type"] == "message";
        if (message) {
            item["content"] = Json::array({part(text_)});
            if (stream_) {
                say("response.output_text.done", place({{"text", text_}, {"logprobs", Json::array()}}));
                say("response.content_part.done", place({{"part", part(text_)}}));
            }
        } else {
            item["arguments"] = text_;
            if (stream_)
                say("response.function_call_arguments.done", place({{"name", item["name"]}, {"arguments", text_}}));
        }
        text_.clear();
        if (stream_) say("response.output_item.done", {{"output_index", items_.size() - 1}, {"item", item}});
    }
    // In the item that is open.
    Json place(Json more) const {
        Json json{{"item_id", items_.back()["id"]}, {"output_index", items_.size() - 1}};
        if (items_.back()["type"] == "message") json["content_index"] = 0;
        json.update(more);
        return json;
    }
    static Json part(const std::string& text) {
        return {{"type", "output_text"}, {"text", text}, {"annotations", Json::array()}, {"logprobs", Json::array()}};
    }
    Json response(std::string_view status, const RequestReport* total) const {
        Json json{{"id", "resp_" + exchange_->id},
                  {"object", "response"},
                  {"created_at", created_},
                  {"status", status},
                  {"model", model_->names[0]},
                  {"output", total ? Json(items_) : Json::array()},
                  {"error", nullptr},
                  {"incomplete_details", nullptr},
                  {"parallel_tool_calls", true},
                  {"tool_choice", "auto"},
                  {"tools", Json::array()},
                  {"temperature", sampling_.temperature},
                  {"top_p", sampling_.top_p},
                  {"text", {{"format", {{"type", "text"}}}}},
                  {"previous_response_id", nullptr},
                  {"store", false},
                  {"truncation", "disabled"},
                  {"usage", nullptr}};
        json.update(echo_);
        if (cut_) json["incomplete_details"] = {{"reason", "max_output_tokens"}};
        if (total)
            json["usage"] = {{"input_tokens", total->prompt_tokens},
                             {"input_tokens_details", {{"cached_tokens", total->cached_tokens}}},
                             {"output_tokens", total->generated_tokens},
                             {"output_tokens_details", {{"reasoning_tokens", 0}}},
                             {"total_tokens", total->prompt_tokens + total->generated_tokens}};
        return json;
    }

    ExchangePtr exchange_;
    ModelPtr model_;
    SseOut out_;
    Json echo_;
    SamplingParams sampling_;
    bool stream_, cut_ = false;
    int64_t created_, sequence_ = 0;
    AnswerParser reader_;
    std::vector<Json> items_;  // of the output
    bool open_ = false;        // the last one goes on
    std::string text_;         // of it
};

}  // namespace

void answer_responses(ExchangePtr exchange, ModelPtr model) {
    const Json body = std::move(exchange->body);
    BodyFields fields(body, exchange->deadline);
    auto wish = read_response(fields, *model, exchange->core.options.ignore_unknown);
    if (!wish.ok()) {
        exchange->fail(fields.told(wish.error()));
        return;
    }
    auto writer = std::make_unique<ResponseWriter>(exchange, model, *wish);
    std::make_shared<LiveRequest>(exchange, model, std::move(writer))->submit({std::move(wish->request)});
}

}  // namespace nibble
