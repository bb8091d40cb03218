// JSON parts of answers that several routes share: usage, timings, log-probabilities, events of streams.
#pragma once

#include "server/live_request.h"

namespace nibble {

Json usage_json(int64_t prompt_tokens, int64_t completion_tokens, int64_t cached_tokens);
inline Json usage_json(const RequestReport& r) {
    return usage_json(r.prompt_tokens, r.generated_tokens, r.cached_tokens);
}
// Returns llama-server's timings: prompt_n, prompt_ms, predicted_per_second ...
Json timings_json(const RequestReport& report);

// Returns a token's text as clients see it: bytes that are not whole characters become U+FFFD. `as_ids`: returns
// "token_id:7".
std::string token_text(const ServedModel& model, int32_t id, bool as_ids);
// Returns -9999 for -infinity, which JSON cannot represent; vLLM does the same.
double json_logprob(float logprob);

// Returns {"token", "logprob", "bytes", "top_logprobs"} of the chat API.
Json chat_logprob(const ServedModel& model, const GeneratedToken& token, bool as_ids);
// Returns a JSON list as text, as vLLM writes it: null for the first token, then {"id": {"logprob", "rank"?,
// "decoded_token"}} for every other. The rank is included if the token is among the requested most likely ones.
std::string prompt_logprobs_text(const ServedModel& model, std::span<const GeneratedToken> prompt, bool as_ids);

// A JSON object that is written as text piece by piece, so that a long answer is in memory only once and never as JSON
// values.
class ObjectText {
public:
    // Adds all fields of an object.
    void add(const Json& fields);
    // Adds a field whose value is JSON text.
    void add_text(std::string_view name, std::string_view value);
    // Adds a field with a list. item(i) returns the JSON text of element i.
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

// Log-probabilities of the completions API: four lists. The offset of a token is the number of complete characters
// (code points) in the choice's text before it; a token that continues a character has that character's offset.
class LegacyLogprobs {
public:
    LegacyLogprobs(const ServedModel& model, bool skip_special) : decoder_(model.tokenizer, skip_special) {}

    // Adds a token. top < 0: without log-probabilities of other tokens.
    void add(const ServedModel& model, const GeneratedToken& token, int32_t top, bool as_ids, bool first_of_prompt);
    // Ends an echoed prompt; its text and the answer's are decoded separately.
    void end_prompt();
    // Returns the lists since the last call.
    Json take();

private:
    Json tokens_ = Json::array(), logprobs_ = Json::array(), top_ = Json::array(), offsets_ = Json::array();
    StreamDecoder decoder_;
    int64_t offset_ = 0;
};

std::string_view finish_reason(const HeardEvent& e);
// Returns the stop string, or the id from stop_token_ids; null for the model's own end tokens.
Json stop_reason(const ServedModel& model, const HeardEvent& e);

// Writes an answer as server-sent events.
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
