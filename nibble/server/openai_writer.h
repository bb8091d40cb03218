// Common parts of /v1/completions and /v1/chat/completions: options, the head of every object, the end of every chunk
// and of the stream.
#pragma once

#include "server/answer_json.h"
#include "server/parameters.h"

namespace nibble {

struct AnswerForm {
    StreamOptions stream;
    bool as_ids = false;           // tokens are written as "token_id:7"
    bool token_ids = false;        // include the ids of prompt and answer
    bool prompt_logprobs = false;  // not in streams
};

// Reads the options; read_sampling() must have filled `request`. Error: a stream that asks for log-probabilities of the
// prompt.
Result<AnswerForm> read_form(BodyFields& fields, const Request& request);

class OpenAiWriter : public AnswerWriter {
public:
    void fail(const ApiError& error) override;

protected:
    OpenAiWriter(ExchangePtr exchange, ModelPtr model, const AnswerForm& form, std::string_view id_prefix);

    // Returns {"id", "object", "created", "model"}.
    Json head(std::string_view object) const;
    // Sends a chunk of tokens with the usage so far, if requested. `total`: set for the last chunk.
    void send_chunk(Json chunk, const std::optional<RequestReport>& total);
    // Sends the chunk with the usage, if requested, and the end of the stream.
    void end_stream(std::string_view object, Json usage);

    ExchangePtr exchange_;
    ModelPtr model_;
    SseOut out_;
    AnswerForm form_;
    int64_t prompt_tokens_ = 0, generated_ = 0;

private:
    std::string id_;
    int64_t created_;
};

}  // namespace nibble
