#include "server/openai_writer.h"

namespace nibble {

Result<AnswerForm> read_form(BodyFields& fields, const Request& request) {
    AnswerForm form{.prompt_logprobs = request.prompt_logprobs >= 0};
    NIBBLE_CHECK(read_stream(fields, form.stream));
    NIBBLE_CHECK(fields.read("return_tokens_as_token_ids", form.as_ids));
    NIBBLE_CHECK(fields.read("return_token_ids", form.token_ids));
    if (form.stream.stream && form.prompt_logprobs)
        return fields.bad("prompt_logprobs", "is not supported for streams");
    return form;
}

OpenAiWriter::OpenAiWriter(ExchangePtr exchange, ModelPtr model, const AnswerForm& form, std::string_view id_prefix)
    : exchange_(std::move(exchange)),
      model_(std::move(model)),
      out_(exchange_),
      form_(form),
      id_(fmt::format("{}{}", id_prefix, exchange_->id)),
      created_(unix_seconds()) {}

Json OpenAiWriter::head(std::string_view object) const {
    return {{"id", id_}, {"object", object}, {"created", created_}, {"model", model_->names[0]}};
}

void OpenAiWriter::send_chunk(Json chunk, const std::optional<RequestReport>& total) {
    if (form_.stream.include_usage) chunk["usage"] = nullptr;
    if (total) chunk["timings"] = timings_json(*total);
    if (form_.stream.continuous_usage) chunk["usage"] = usage_json(prompt_tokens_, generated_, 0);
    out_.data(chunk);
}

void OpenAiWriter::end_stream(std::string_view object, Json usage) {
    if (form_.stream.include_usage) {
        Json last = head(object);
        last["choices"] = Json::array();
        last["usage"] = std::move(usage);
        out_.data(last);
    }
    out_.done(true);
    out_.log(200);
}

void OpenAiWriter::fail(const ApiError& error) {
    if (!form_.stream.stream) {
        exchange_->fail(error);
        return;
    }
    out_.data(error_json(error, ApiStyle::openai));
    out_.done(true);
    out_.log(error.status);
}

}  // namespace nibble
