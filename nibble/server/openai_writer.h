// What answers of /v1/completions and /v1/chat/completions have in common: how they are asked for, the head of every
// object, the tail of every chunk and the end of a stream.
#pragma once

#include "server/answer_json.h"
#include "server/parameters.h"

namespace nibble {

struct AnswerForm {
    StreamOptions stream;
    bool as_ids = false;           // tokens as "token_id:7"
    bool token_ids = false;        // ids of prompt and answer, too
    bool prompt_logprobs = false;  // not in streams
};

// `request`: behind read_sampling(). Error: log-probabilities of the prompt of a stream.
Result<AnswerForm> read_form(BodyFields& fields, const Request& request);

class OpenAiWriter : public AnswerWriter {
public:
    void fail(const ApiError& error) override;

protected:
    OpenAiWriter(ExchangePtr exchange, ModelPtr model, const AnswerForm& form, std::string_view id_prefix);

    // {"id", "object", "created", "model"}.
    Json head(std::string_view object) const;
    // A chunk of tokens, with what is known behind it; `total`: of the last one.
    void send_chunk(Json chunk, const std::optional<RequestReport>& total);
    // The chunk of the usage, if it was asked for, and the end.
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
