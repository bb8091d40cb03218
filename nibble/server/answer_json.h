// Parts of answers that several routes share, as JSON: usage, timings, log-probabilities, events of streams.
#pragma once

#include "server/live_request.h"

namespace nibble {

Json usage_json(int64_t prompt_tokens, int64_t completion_tokens, int64_t cached_tokens);
inline Json usage_json(const RequestReport& r) {
    return usage_json(r.prompt_tokens, r.generated_tokens, r.cached_tokens);
}
// As llama-server has it: prompt_n, prompt_ms, predicted_per_second ...
Json timings_json(const RequestReport& report);

// What clients see of a token: its text; bytes that are no whole characters as U+FFFD. `as_ids`: "token_id:7".
std::string token_text(const ServedModel& model, int32_t id, bool as_ids);
// JSON has no -infinity: -9999, as vLLM writes it.
double json_logprob(float logprob);

// {"token", "logprob", "bytes", "top_logprobs"} of chat.
Json chat_logprob(const ServedModel& model, const GeneratedToken& token, bool as_ids);
// A list, as text: null for the first token, then {"id": {"logprob", "rank"?, "decoded_token"}} for every other, as
// vLLM writes it. The rank is given where the token is among the likeliest that were asked for.
std::string prompt_logprobs_text(const ServedModel& model, std::span<const GeneratedToken> prompt, bool as_ids);

// An object of JSON that is written as text piece by piece: a long answer is in memory once, and never as values.
class ObjectText {
public:
    // All fields of an object.
    void add(const Json& fields);
    // A field whose value is JSON text already.
    void add_text(std::string_view name, std::string_view value);
    // A field with a list. item(i): JSON text of element i.
    template <class Item>
    void add_list(std::string_view name, size_t count, const Item& item) {
        begin(name);
        text_ += '[';
        for (size_t i = 0; i < count; ++i) {
            if (i > 0) text_ += ',';
            text_ += item(i);
        }
        text_ += ']';
    }
    std::string take() { return std::exchange(text_, "{") + "}"; }

private:
    void begin(std::string_view name);
    std::string text_ = "{";
};
HttpResponse json_text_response(std::string text);

// Log-probabilities of completions: four lists. The offset of a token is the number of characters (code points) that
// are complete in the choice's text before it: a token that continues a character has the place of that character.
class LegacyLogprobs {
public:
    LegacyLogprobs(const ServedModel& model, bool skip_special) : decoder_(model.tokenizer, skip_special) {}

    // top < 0: none.
    void add(const ServedModel& model, const GeneratedToken& token, int32_t top, bool as_ids, bool first_of_prompt);
    // An echoed prompt is complete: its text and the answer's are decoded apart.
    void end_prompt();
    // What was added since the last call.
    Json take();

private:
    Json tokens_ = Json::array(), logprobs_ = Json::array(), top_ = Json::array(), offsets_ = Json::array();
    StreamDecoder decoder_;
    int64_t offset_ = 0;
};

std::string_view finish_reason(const HeardEvent& e);
// The stop string, or the id of a stop_token_ids; null for the model's own end tokens.
Json stop_reason(const ServedModel& model, const HeardEvent& e);

// The stream of an answer.
class SseOut {
public:
    explicit SseOut(ExchangePtr exchange) : exchange_(std::move(exchange)) {}
    void begin() { exchange_->begin_stream(); }
    void data(const Json& json) { exchange_->answer->write("data: " + body_text(json) + "\n\n"); }
    void event(std::string_view name, const Json& json);
    void done(bool say_done);
    void log(int status) { exchange_->log(status); }

private:
    ExchangePtr exchange_;
};

}  // namespace nibble
