// Sampling parameters of a request's body, of OpenAI's API and vLLM's extras, as the engine's Request.
#pragma once

#include "server/body_fields.h"
#include "server/served_model.h"

namespace nibble {

struct StreamOptions {
    bool stream = false;
    bool include_usage = false;     // a last chunk with the usage
    bool continuous_usage = false;  // the usage so far in every chunk
};

// What completions and chat have in common. `request` begins as the model's; its prompt, logprobs and max_tokens are
// the caller's. Without "seed" a random one.
Status read_sampling(BodyFields& fields, const ServedModel& model, Request& request);
// Texts that end the answer, in the field `name`: a text or a list.
Status read_stop(BodyFields& fields, std::string_view name, Request& request);
// "prediction": what the answer may largely say; guesses look there, too. The answer is the same without.
Status read_prediction(BodyFields& fields, const ServedModel& model, Request& request);
Status read_stream(BodyFields& fields, StreamOptions& stream);
// Fields that tell the server nothing: "user" and the like; and those of neutral_fields.h.
Status read_the_rest(BodyFields& fields);
// Error: the prompt does not fit, in the words and with the code that clients look for. Blames the field.
Status check_fits(BodyFields& fields, std::string_view name, const ServedModel& model, std::span<const int32_t> prompt);
// Keeps the last `most` tokens; -1: as many as the context holds.
Status truncate_prompt(BodyFields& fields, const ServedModel& model, std::vector<int32_t>& prompt);

// "the answer's text may begin in the middle": bad words with and without a space in front, as vLLM encodes them.
Result<std::vector<std::vector<int32_t>>> encode_bad_words(const ServedModel& model,
                                                           std::span<const std::string> words);

}  // namespace nibble
