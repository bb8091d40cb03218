// POST /v1/chat/completions.
#include "server/chat_turn.h"
#include "server/input_reader.h"
#include "server/neutral_fields.h"
#include "server/openai_writer.h"
#include "server/routes.h"

namespace nibble {
namespace {

struct ChatWish {
    ChatTurn turn;
    Request request;
    AnswerForm form;
    bool logprobs = false;
    bool any_length = false;  // the request has no max_tokens
};

Result<ChatWish> read_chat(BodyFields& fields, const ServedModel& model, bool ignore_unknown) {
    ChatWish wish;
    wish.request = model.like;
    Request& request = wish.request;
    const bool whole = fields.has("truncate_prompt_tokens");  // the end of the prompt is needed
    NIBBLE_TRY(wish.turn, read_chat_turn(fields, model, whole ? MeterLimits::unlimited : most_prompt_tokens(model)));
    NIBBLE_CHECK(read_sampling(fields, model, request));
    GrammarTokensPtr grammar;
    NIBBLE_CHECK(read_answer_grammar(fields, model.grammars.get(), grammar));
    NIBBLE_TRY(wish.form, read_form(fields, request));
    NIBBLE_CHECK(fields.read("logprobs", wish.logprobs));
    int32_t top = 0;
    NIBBLE_CHECK(fields.read_in("top_logprobs", top, 0, 100));
    if (top > 0 && !wish.logprobs) return fields.bad("top_logprobs", "requires logprobs = true");
    if (wish.logprobs) request.top_logprobs = top;
    NIBBLE_CHECK(fields.must_be("echo", false));
    NIBBLE_CHECK(read_prediction(fields, model, request));
    request.prompt = wish.turn.prompt.tokens;
    NIBBLE_CHECK(truncate_prompt(fields, model, request.prompt));
    NIBBLE_CHECK(check_fits(fields, "messages", model, request.prompt));
    request.max_tokens = model.context() - std::ssize(request.prompt);
    NIBBLE_CHECK(fields.read_in("max_tokens", request.max_tokens, int64_t{1}, int64_t{1} << 40));
    wish.any_length = !fields.has("max_tokens") && !fields.has("max_completion_tokens");
    NIBBLE_CHECK(fields.read_in("max_completion_tokens", request.max_tokens, int64_t{1}, int64_t{1} << 40));
    if (request.min_tokens > request.max_tokens) return fields.bad("min_tokens", "is greater than max_tokens");
    if (const Status held = hold_answer(wish.turn, model, std::move(grammar), request); !held.ok()) {
        fields.blame(wish.turn.asked.tools.is_null() ? "response_format" : "tools");
        return held.error();
    }
    if (!ignore_unknown) NIBBLE_CHECK(read_the_rest(fields));
    return wish;
}

class ChatWriter : public OpenAiWriter {
public:
    ChatWriter(ExchangePtr exchange, ModelPtr model, const ChatWish& wish)
        : OpenAiWriter(std::move(exchange), std::move(model), wish.form, "chatcmpl-"),
          logprobs_(wish.logprobs),
          tools_(wish.turn.tools),
          functions_(wish.turn.functions),
          predicted_(!wish.request.expected.empty()) {
        prompt_tokens_ = std::ssize(wish.request.prompt);
        if (form_.token_ids) prompt_ = wish.request.prompt;
        for (int32_t i = 0; i < wish.request.choices; ++i) choices_.emplace_back(wish.turn.reader());
    }

    void begin() override {
        if (!form_.stream.stream) return;
        out_.begin();
        for (size_t i = 0; i < choices_.size(); ++i) {
            Json chunk = head("chat.completion.chunk");
            chunk["choices"] = Json::array({{{"index", i},
                                             {"delta", {{"role", "assistant"}, {"content", ""}}},
                                             {"logprobs", nullptr},
                                             {"finish_reason", nullptr}}});
            if (form_.stream.include_usage) chunk["usage"] = nullptr;
            if (form_.token_ids && i == 0) chunk["prompt_token_ids"] = prompt_;
            out_.data(chunk);
        }
    }

    void event(const HeardEvent& e) override {
        One& one = choices_[size_t(e.choice)];
        if (!e.prompt.empty()) prompt_scores_ = e.prompt;
        generated_ += std::ssize(e.tokens);
        std::vector<AnswerPart> parts = one.reader.push(e.text);
        const bool ends = e.finish != FinishReason::none;
        if (ends)
            for (AnswerPart& part : one.reader.finish(e.finish == FinishReason::length))
                parts.push_back(std::move(part));
        for (AnswerPart& part : parts) read_input(one, part);
        std::erase_if(parts, [&](const AnswerPart& part) { return is_extra(part); });
        for (const GeneratedToken& t : e.tokens) {
            if (logprobs_ && form_.stream.stream) one.logprobs.push_back(chat_logprob(*model_, t, form_.as_ids));
            if (logprobs_ && !form_.stream.stream)
                (one.scores += one.scores.empty() ? "" : ",") += body_text(chat_logprob(*model_, t, form_.as_ids));
            if (form_.token_ids) one.ids.push_back(t.id);
        }
        if (!form_.stream.stream) {
            for (const AnswerPart& part : parts) note(one, part);
            if (ends) one.finish = e;
            return;
        }
        if (parts.empty() && !ends && !(logprobs_ && !e.tokens.empty())) return;
        // Sends one chunk per part; data of the tokens are in the last chunk.
        const size_t chunks = std::max<size_t>(parts.size(), 1);
        for (size_t i = 0; i < chunks; ++i) {
            const bool last = i + 1 == chunks;
            Json choice{{"index", e.choice},
                        {"delta", i < parts.size() ? delta_of(one, parts[i]) : Json::object()},
                        {"logprobs", nullptr},
                        {"finish_reason", nullptr}};
            if (last) {
                if (logprobs_) choice["logprobs"] = {{"content", std::exchange(one.logprobs, Json::array())}};
                if (form_.token_ids) choice["token_ids"] = std::exchange(one.ids, {});
                if (ends) choice["finish_reason"] = reason_of(one, e);
                if (ends) choice["stop_reason"] = stop_reason(*model_, e);
            }
            Json chunk = head("chat.completion.chunk");
            chunk["choices"] = Json::array({std::move(choice)});
            send_chunk(std::move(chunk), last ? e.total : std::nullopt);
        }
    }

    void finish(const RequestReport& total) override {
        if (form_.stream.stream) return end_stream("chat.completion.chunk", usage(total));
        ObjectText json;
        json.add(head("chat.completion"));
        json.add_list("choices", choices_.size(), [&](size_t i) { return choice_text(i); });
        json.add({{"usage", usage(total)}});
        if (form_.prompt_logprobs)
            json.add_text("prompt_logprobs", prompt_logprobs_text(*model_, prompt_scores_, form_.as_ids));
        if (form_.token_ids) json.add({{"prompt_token_ids", prompt_}});
        json.add({{"timings", timings_json(total)}});
        exchange_->send(json_text_response(json.take()));
    }

private:
    struct One {
        explicit One(AnswerParser r) : reader(std::move(r)) {}
        AnswerParser reader;
        std::string content, reasoning;
        Json calls = Json::array();
        std::vector<bool> custom;       // by the index of the call: whether it is a custom tool's
        InputReader input;              // input of the last call
        Json logprobs = Json::array();  // log-probabilities of the next chunk
        std::string scores;             // the same for a whole answer, as text
        std::vector<int32_t> ids;
        HeardEvent finish;
    };

    // Returns the usage; with a prediction it includes draft tokens, which may also come from the prompt.
    Json usage(const RequestReport& total) const {
        Json json = usage_json(total);
        if (predicted_)
            json["completion_tokens_details"] = {
                {"accepted_prediction_tokens", total.accepted_tokens},
                {"rejected_prediction_tokens", total.draft_tokens - total.accepted_tokens}};
        return json;
    }

    // Replaces the arguments of a custom tool's call by its input.
    void read_input(One& one, AnswerPart& part) const {
        if (part.kind == AnswerPart::Kind::tool_begin) {
            one.custom.push_back(tools_.called(part.name).custom);
            one.input = {};
        }
        if (part.kind == AnswerPart::Kind::tool_arguments && one.custom[part.index])
            part.text = one.input.push(part.text);
    }

    // Returns the beginning of a call, without arguments or input.
    static Json call_of(const One& one, const AnswerPart& part) {
        const bool custom = one.custom[part.index];
        const char* const type = custom ? "custom" : "function";
        return {{"id", part.id}, {"type", type}, {type, {{"name", part.name}, {custom ? "input" : "arguments", ""}}}};
    }

    Json delta_of(const One& one, const AnswerPart& part) const {
        if (functions_ && part.kind == AnswerPart::Kind::tool_begin)
            return {{"function_call", {{"name", part.name}, {"arguments", ""}}}};
        if (functions_ && part.kind == AnswerPart::Kind::tool_arguments)
            return {{"function_call", {{"arguments", part.text}}}};
        switch (part.kind) {
            case AnswerPart::Kind::reasoning:
                return {{"reasoning_content", part.text}};
            case AnswerPart::Kind::content:
                return {{"content", part.text}};
            case AnswerPart::Kind::tool_begin: {
                Json call = call_of(one, part);
                call["index"] = part.index;
                return {{"tool_calls", Json::array({std::move(call)})}};
            }
            case AnswerPart::Kind::tool_arguments: {
                Json call{{"index", part.index}};
                if (one.custom[part.index])
                    call["custom"] = {{"input", part.text}};
                else
                    call["function"] = {{"arguments", part.text}};
                return {{"tool_calls", Json::array({std::move(call)})}};
            }
            case AnswerPart::Kind::tool_end:
                break;
        }
        return Json::object();
    }

    static void note(One& one, const AnswerPart& part) {
        switch (part.kind) {
            case AnswerPart::Kind::reasoning:
                one.reasoning += part.text;
                break;
            case AnswerPart::Kind::content:
                one.content += part.text;
                break;
            case AnswerPart::Kind::tool_begin:
                one.calls.push_back(call_of(one, part));
                break;
            case AnswerPart::Kind::tool_arguments: {
                Json& call = one.calls.back();
                Json& text = one.custom[part.index] ? call["custom"]["input"] : call["function"]["arguments"];
                text.get_ref<std::string&>() += part.text;
                break;
            }
            case AnswerPart::Kind::tool_end:
                break;
        }
    }

    std::string_view reason_of(const One& one, const HeardEvent& e) const {
        if (e.finish != FinishReason::stop || !one.reader.called_tools()) return finish_reason(e);
        return functions_ ? "function_call" : "tool_calls";
    }
    // Returns true if the part is omitted: arguments without text, and, with the deprecated function_call, every call
    // after the first.
    bool is_extra(const AnswerPart& part) const {
        if (part.kind == AnswerPart::Kind::tool_arguments && part.text.empty()) return true;
        return functions_ && part.index > 0 && part.kind >= AnswerPart::Kind::tool_begin;
    }

    std::string choice_text(size_t i) {
        One& one = choices_[i];
        const bool called = !one.calls.empty();
        Json message{{"role", "assistant"}};
        message["content"] = called && one.content.empty() ? Json(nullptr) : Json(one.content);
        if (!one.reasoning.empty()) message["reasoning_content"] = one.reasoning;
        if (called && functions_)
            message["function_call"] = one.calls[0]["function"];
        else if (called)
            message["tool_calls"] = one.calls;
        ObjectText json;
        json.add({{"index", i}, {"message", std::move(message)}});
        json.add_text("logprobs", logprobs_ ? "{\"content\":[" + std::exchange(one.scores, {}) + "]}" : "null");
        json.add({{"finish_reason", reason_of(one, one.finish)}, {"stop_reason", stop_reason(*model_, one.finish)}});
        if (form_.token_ids) json.add({{"token_ids", one.ids}});
        return json.take();
    }

    bool logprobs_;
    ClientTools tools_;
    bool functions_, predicted_;
    std::vector<int32_t> prompt_;
    std::vector<One> choices_;
    std::vector<GeneratedToken> prompt_scores_;
};

}  // namespace

void answer_chat(ExchangePtr exchange, ModelPtr model) {
    Json body = std::move(exchange->body);
    BodyFields fields(body, exchange->deadline);
    if (const Status read = unfold_nvext(fields, body); !read.ok())
        return exchange->fail(fields.client_error(read.error()));
    auto wish = read_chat(fields, *model, exchange->core.options.ignore_unknown);
    if (!wish.ok()) {
        exchange->fail(fields.client_error(wish.error()));
        return;
    }
    note_unwritten_tools(*exchange, wish->turn);
    Request& request = wish->request;
    const AnswerForms form{.whole = !wish->form.stream.stream,
                           .token_ids = wish->form.token_ids,
                           .prompt_logprobs = wish->form.prompt_logprobs,
                           .copied = copied_tools(*exchange, wish->turn)};
    // Without max_tokens, the answer is as long as the request's memory limit permits. With max_tokens beyond this
    // limit, the request is rejected.
    if (wish->any_length)
        request.max_tokens =
            std::max(request.min_tokens, most_tokens_within(exchange->core.options.request_bytes, request,
                                                            std::ssize(request.prompt), model->context(), form));
    if (!count_answer(*exchange, *model, request, {&request.prompt, 1}, form)) return;
    auto writer = std::make_unique<ChatWriter>(exchange, model, *wish);
    std::make_shared<LiveRequest>(exchange, model, std::move(writer))->submit(std::move(wish->request));
}

}  // namespace nibble
