// POST /v1/responses of OpenAI's API: texts, functions and custom tools. docs/server-api.md has a table of its fields.
#include "server/answer_json.h"
#include "server/input_reader.h"
#include "server/parameters.h"
#include "server/pending_tokens.h"
#include "server/routes.h"
#include "server/tool_turn.h"

#include "base/utf8.h"

#include <array>
#include <charconv>

namespace nibble {
namespace {

struct ResponseWish {
    ResponsesTurn turn;
    Request request;
    Json echo = Json::object();  // fields of the request that the answer repeats
    bool stream = false, store = true, logprobs = false;
};

// Reads "include" and returns whether it requests log-probabilities. The other known values belong to tools that the
// server does not run, to pictures, or to encrypted reasoning; they have no effect.
Status read_include(BodyFields& fields, bool& logprobs) {
    static constexpr std::array known{"file_search_call.results",       "web_search_call.results",
                                      "web_search_call.action.sources", "message.input_image.image_url",
                                      "code_interpreter_call.outputs",  "computer_call_output.output.image_url",
                                      "reasoning.encrypted_content",    "message.output_text.logprobs"};
    const Json* list = fields.find("include");
    if (!list) return Ok{};
    if (!list->is_array()) return fields.bad("include", "is not a list");
    for (const Json& what : *list) {
        if (std::ranges::none_of(known, [&](const char* name) { return what == name; }))
            return fields.bad("include", fmt::format("{} is not supported",
                                                     what.dump(-1, ' ', false, Json::error_handler_t::replace)));
        logprobs |= what == "message.output_text.logprobs";
    }
    return Ok{};
}

// Returns the fields of the request that the answer repeats, with defaults for those that are absent.
Json echo_of(BodyFields& fields, const ResponseWish& wish, bool stored) {
    Json echo = Json::object();
    for (const char* name : {"instructions", "max_output_tokens", "max_tool_calls", "metadata", "previous_response_id",
                             "prompt_cache_key", "prompt_cache_retention", "safety_identifier", "user"}) {
        const Json* value = fields.find(name);
        echo[name] = value ? *value : Json(nullptr);
    }
    for (const char* name : {"tools", "tool_choice", "parallel_tool_calls", "text", "reasoning", "truncation",
                             "top_logprobs", "background"})
        if (const Json* value = fields.find(name)) echo[name] = *value;
    if (fields.has("service_tier")) echo["service_tier"] = "default";
    echo["temperature"] = wish.request.sampling.temperature;
    echo["top_p"] = wish.request.sampling.top_p;
    echo["store"] = stored;
    return echo;
}

Result<ResponseWish> read_response(BodyFields& fields, const ServedModel& model, ServerCore& core) {
    ResponseWish wish;
    wish.request = model.like;
    Request& request = wish.request;
    for (const char* name : {"conversation", "prompt", "context_management", "moderation", "background_options"})
        if (const Json* value = fields.find(name); value && !value->empty())
            return fields.bad(name, "is not supported");
    NIBBLE_CHECK(fields.must_be("background", false));
    NIBBLE_CHECK(read_include(fields, wish.logprobs));
    int32_t top = 0;
    NIBBLE_CHECK(fields.read_in("top_logprobs", top, 0, 20));
    wish.logprobs |= top > 0;
    if (wish.logprobs) request.top_logprobs = top;
    NIBBLE_TRY(wish.turn, read_responses_turn(fields, model, core.responses, core.options.limits.body_bytes));
    const ChatTurn& chat = wish.turn.chat;
    GrammarTokensPtr grammar;
    if (const Json* text = fields.find("text"); text && text->contains("format") && !(*text)["format"].is_null())
        NIBBLE_CHECK(read_response_format(fields, "text", (*text)["format"], model.grammars.get(), grammar));
    NIBBLE_CHECK(read_sampling(fields, model, request));
    if (request.choices != 1) return fields.bad("n", "is not a parameter of this API");
    NIBBLE_CHECK(fields.read("stream", wish.stream));
    NIBBLE_CHECK(fields.read("store", wish.store));
    wish.store = wish.store && core.options.stored_bytes > 0;
    request.prompt = chat.prompt.tokens;
    NIBBLE_CHECK(check_fits(fields, "input", model, request.prompt));
    request.max_tokens = model.context() - std::ssize(request.prompt);
    NIBBLE_CHECK(fields.read_in("max_output_tokens", request.max_tokens, int64_t{1}, int64_t{1} << 40));
    if (const Status held = hold_answer(chat, model, std::move(grammar), request); !held.ok())
        return fields.bad(chat.asked.tools.is_null() ? "text" : "tools", held.error().message());
    wish.echo = echo_of(fields, wish, wish.store);
    fields.ignore({"stream_options", "prompt_cache_options", "client_metadata", "image"});
    if (!core.options.ignore_unknown) NIBBLE_CHECK(read_the_rest(fields));
    return wish;
}

class ResponseWriter : public AnswerWriter {
public:
    ResponseWriter(ExchangePtr exchange, ModelPtr model, const ResponseWish& wish)
        : exchange_(std::move(exchange)),
          model_(std::move(model)),
          out_(exchange_),
          turn_(wish.turn),
          echo_(wish.echo),
          stream_(wish.stream),
          store_(wish.store),
          logprobs_(wish.logprobs),
          created_(unix_seconds()),
          id_(random_id()),
          reader_(wish.turn.chat.reader()) {}

    void begin() override {
        if (!stream_) return;
        out_.begin();
        say("response.created", {{"response", response("in_progress", nullptr)}});
        say("response.in_progress", {{"response", response("in_progress", nullptr)}});
    }

    void event(const HeardEvent& e) override {
        if (logprobs_)
            for (const GeneratedToken& token : e.tokens) {
                Json logprob = chat_logprob(*model_, token, false);
                std::string bytes;
                for (const Json& byte : logprob["bytes"]) bytes += static_cast<char>(byte.get<int>());
                pending_.push(std::move(bytes), std::move(logprob));
            }
        std::vector<AnswerPart> parts = reader_.push(e.text);
        if (e.finish != FinishReason::none) {
            for (AnswerPart& one : reader_.finish(e.finish == FinishReason::length)) parts.push_back(std::move(one));
            cut_ = e.finish == FinishReason::length;
        }
        for (const AnswerPart& one : parts) add(one);
        if (!answered_) reasoning_tokens_ += std::ssize(e.tokens);
    }

    void finish(const RequestReport& total) override {
        const char* status = cut_ ? "incomplete" : "completed";
        if (items_.empty()) open(message_item());
        close(status);
        Json json = response(status, &total);
        if (store_)
            exchange_->core.responses.keep(turn_.previous, std::move(turn_.input), json,
                                           exchange_->core.options.stored_bytes);
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
        answered_ |= one.kind != AnswerPart::Kind::reasoning;
        if (one.kind >= AnswerPart::Kind::tool_begin && one.index >= turn_.most_calls) return;
        switch (one.kind) {
            case AnswerPart::Kind::reasoning:
                if (logprobs_) pending_.take(one.text);
                reasons_ = true;
                if (!open_ || type() != "reasoning") open(reasoning_item());
                text_ += one.text;
                if (stream_) say("response.reasoning_text.delta", place({{"delta", one.text}}));
                break;
            case AnswerPart::Kind::content: {
                if (!open_ || type() != "message") open(message_item());
                text_ += one.text;
                Json logprobs = logprobs_ ? pending_.take(one.text) : Json::array();
                if (stream_) say("response.output_text.delta", place({{"delta", one.text}, {"logprobs", logprobs}}));
                for (Json& logprob : logprobs) said_logprobs_.push_back(std::move(logprob));
                break;
            }
            case AnswerPart::Kind::tool_begin:
                open(call_item(one));
                break;
            case AnswerPart::Kind::tool_arguments: {
                pending_.clear();
                const bool custom = type() == "custom_tool_call";
                const std::string piece = custom ? input_.push(one.text) : one.text;
                if (piece.empty()) break;
                text_ += piece;
                if (stream_)
                    say(custom ? "response.custom_tool_call_input.delta" : "response.function_call_arguments.delta",
                        place({{"delta", piece}}));
                break;
            }
            case AnswerPart::Kind::tool_end:
                pending_.clear();
                close("completed");
                break;
        }
    }
    std::string type() const { return items_.back()["type"]; }
    Json call_item(const AnswerPart& one) {
        const ClientTool tool = turn_.chat.tools.called(one.name);
        input_ = {};
        Json item{{"id", fmt::format("{}_{}_{}", tool.custom ? "ctc" : "fc", id_, one.index)},
                  {"type", tool.custom ? "custom_tool_call" : "function_call"},
                  {"status", "in_progress"},
                  {"call_id", one.id}};
        tool.name_in(item);
        item[tool.custom ? "input" : "arguments"] = "";
        return item;
    }
    std::string item_id(std::string_view kind) const {
        return items_.empty() ? fmt::format("{}_{}", kind, id_) : fmt::format("{}_{}_{}", kind, id_, items_.size());
    }
    Json reasoning_item() const {
        return {{"id", item_id("rs")},      {"type", "reasoning"},      {"status", "in_progress"},
                {"summary", Json::array()}, {"content", Json::array()}, {"encrypted_content", nullptr}};
    }
    Json message_item() const {
        return {{"id", item_id("msg")},
                {"type", "message"},
                {"role", "assistant"},
                {"status", "in_progress"},
                {"content", Json::array()}};
    }
    // Begins the next item of the output and completes the one before.
    void open(Json item) {
        close("completed");
        items_.push_back(std::move(item));
        open_ = true;
        if (!stream_) return;
        say("response.output_item.added", {{"output_index", items_.size() - 1}, {"item", items_.back()}});
        if (has_content()) say("response.content_part.added", place({{"part", part("", Json::array())}}));
    }
    void close(std::string_view status) {
        if (!open_) return;
        open_ = false;
        Json& item = items_.back();
        item["status"] = status;
        if (has_content()) {
            const Json whole = part(text_, std::exchange(said_logprobs_, Json::array()));
            item["content"] = Json::array({whole});
            if (stream_) {
                if (type() == "reasoning")
                    say("response.reasoning_text.done", place({{"text", text_}}));
                else
                    say("response.output_text.done", place({{"text", text_}, {"logprobs", whole["logprobs"]}}));
                say("response.content_part.done", place({{"part", whole}}));
            }
        } else if (type() == "custom_tool_call") {
            item["input"] = text_;
            if (stream_) say("response.custom_tool_call_input.done", place({{"input", text_}}));
        } else {
            item["arguments"] = text_;
            if (stream_)
                say("response.function_call_arguments.done", place({{"name", item["name"]}, {"arguments", text_}}));
        }
        text_.clear();
        if (stream_) say("response.output_item.done", {{"output_index", items_.size() - 1}, {"item", item}});
    }
    // Returns true if the open item's text is part of its content, as in messages and reasoning.
    bool has_content() const { return type() == "message" || type() == "reasoning"; }
    // Returns `more` with the position in the open item.
    Json place(Json more) const {
        Json json{{"item_id", items_.back()["id"]}, {"output_index", items_.size() - 1}};
        if (has_content()) json["content_index"] = 0;
        json.update(more);
        return json;
    }
    Json part(const std::string& text, Json logprobs) const {
        if (type() == "reasoning") return {{"type", "reasoning_text"}, {"text", text}};
        return {
            {"type", "output_text"}, {"text", text}, {"annotations", Json::array()}, {"logprobs", std::move(logprobs)}};
    }
    Json response(std::string_view status, const RequestReport* total) const {
        Json json{{"id", "resp_" + id_},
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
                  {"text", {{"format", {{"type", "text"}}}}},
                  {"truncation", "disabled"},
                  {"top_logprobs", 0},
                  {"background", false},
                  {"usage", nullptr}};
        json.update(echo_);
        if (cut_) json["incomplete_details"] = {{"reason", "max_output_tokens"}};
        if (total)
            json["usage"] = {
                {"input_tokens", total->prompt_tokens},
                {"input_tokens_details", {{"cached_tokens", total->cached_tokens}, {"cache_write_tokens", 0}}},
                {"output_tokens", total->generated_tokens},
                {"output_tokens_details", {{"reasoning_tokens", reasons_ ? reasoning_tokens_ : 0}}},
                {"total_tokens", total->prompt_tokens + total->generated_tokens}};
        return json;
    }

    ExchangePtr exchange_;
    ModelPtr model_;
    SseOut out_;
    ResponsesTurn turn_;
    Json echo_;
    bool stream_, store_, logprobs_, cut_ = false;
    int64_t created_, sequence_ = 0;
    std::string id_;  // part of all ids of the answer; random, so that other clients cannot guess it, even if the
                      // client chose the request's id
    AnswerParser reader_;
    std::vector<Json> items_;  // items of the output
    bool open_ = false;        // the last item is not finished
    std::string text_;         // text of the last item
    InputReader input_;        // input of a custom tool's call
    PendingTokens pending_;
    Json said_logprobs_ = Json::array();  // log-probabilities of the open message
    bool reasons_ = false;                // the answer has reasoning
    bool answered_ = false;               // the reasoning has ended, or there is none
    int64_t reasoning_tokens_ = 0;        // tokens before the text or the call; used only if there is reasoning
};

}  // namespace

void answer_responses(ExchangePtr exchange, ModelPtr model) {
    const Json body = std::move(exchange->body);
    BodyFields fields(body, exchange->deadline);
    auto wish = read_response(fields, *model, exchange->core);
    if (!wish.ok()) {
        exchange->fail(fields.client_error(wish.error()));
        return;
    }
    note_unwritten_tools(*exchange, wish->turn.chat);
    for (const std::string& type : wish->turn.chat.tools.left_out())
        exchange->core.note_once(
            fmt::format("tools of type {} are left out of prompts: the server does not run them", type));
    constexpr int64_t bytes_per_byte = 48;  // memory per byte that the answer repeats: values, and the events that
                                            // contain them
    const int64_t repeated = bytes_per_byte * std::ssize(body_text(wish->echo));
    const AnswerForms form{.whole = !wish->stream || wish->logprobs,  // the last event repeats them
                           .copied = copied_tools(*exchange, wish->turn.chat) + repeated};
    Request& request = wish->request;
    if (wish->echo["max_output_tokens"].is_null())
        request.max_tokens =
            std::max(request.min_tokens, most_tokens_within(exchange->core.options.request_bytes, request,
                                                            std::ssize(request.prompt), model->context(), form));
    if (!count_answer(*exchange, *model, request, {&request.prompt, 1}, form)) return;
    auto writer = std::make_unique<ResponseWriter>(exchange, model, *wish);
    std::make_shared<LiveRequest>(exchange, model, std::move(writer))->submit(std::move(wish->request));
}

namespace {

// GET /v1/responses/ID/input_items: lists the items of the request.
void list_input(HttpExchange& exchange, const StoredResponse& stored) {
    const HttpRequest& asked = exchange.request;
    const std::string order(asked.query_value("order")), after(asked.query_value("after"));
    int64_t limit = 20;
    if (const std::string_view text = asked.query_value("limit"); !text.empty()) {
        const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), limit);
        if (error != std::errc() || end != text.data() + text.size() || limit < 1 || limit > 100)
            return exchange.fail({.message = "'limit': is not in [1, 100]", .param = "limit"});
    }
    if (!order.empty() && order != "asc" && order != "desc")
        return exchange.fail({.message = "'order': is neither asc nor desc", .param = "order"});
    Json all = stored.input();
    if (order != "asc") std::reverse(all.begin(), all.end());
    auto from = all.begin();
    if (!after.empty()) {
        const auto is_it = [&](const Json& item) { return item.value("id", Json()) == after; };
        const auto found = std::find_if(all.begin(), all.end(), is_it);
        if (found == all.end()) return exchange.fail({.message = "'after': there is no such item", .param = "after"});
        from = found + 1;
    }
    const auto to = from + std::min<std::ptrdiff_t>(limit, all.end() - from);
    Json data = Json::array();
    for (auto at = from; at != to; ++at) data.push_back(*at);
    const auto id = [&](size_t i) { return data.empty() ? Json(nullptr) : data[i]["id"]; };
    exchange.send(Json{{"object", "list"},
                       {"first_id", id(0)},
                       {"last_id", id(data.empty() ? 0 : data.size() - 1)},
                       {"has_more", to != all.end()},
                       {"data", data}});
}

}  // namespace

void answer_stored_response(ExchangePtr exchange, ModelPtr) {
    std::string id = exchange->request.path.substr(std::string_view("/v1/responses/").size());
    constexpr std::string_view items = "/input_items";
    const bool lists = id.ends_with(items);
    if (lists) id.resize(id.size() - items.size());
    const bool deletes = exchange->request.method == "DELETE";
    ResponseStore& store = exchange->core.responses;
    const StoredPtr stored = deletes && lists ? nullptr : store.find(id);
    if (!stored)
        return exchange->fail({.status = 404,
                               .message = fmt::format("Response with id '{}' not found.", printable(id, 100)),
                               .code = "response_not_found"});
    if (deletes) {
        store.forget(id);
        return exchange->send(Json{{"id", id}, {"object", "response"}, {"deleted", true}});
    }
    if (lists) return list_input(*exchange, *stored);
    if (exchange->request.query_value("stream") == "true")
        return exchange->fail({.message = "'stream': a stored response cannot be streamed", .param = "stream"});
    exchange->send(HttpResponse{.headers = {{"Content-Type", "application/json"}}, .body = stored->response()});
}

}  // namespace nibble
