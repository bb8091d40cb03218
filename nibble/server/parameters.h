// Reads the sampling parameters of a request's body (OpenAI's API and vLLM's extensions) into the engine's Request.
// Errors name the field.
#pragma once

#include "server/body_fields.h"
#include "server/served_model.h"

namespace nibble {

struct StreamOptions {
    bool stream = false;
    bool include_usage = false;     // send the usage in a last chunk
    bool continuous_usage = false;  // send the usage so far in every chunk
};

// Reads the parameters that completions and chat share. `request` must contain the model's defaults; the caller sets
// its prompt, logprobs and max_tokens. Without "seed" a random seed is used.
Status read_sampling(BodyFields& fields, const ServedModel& model, Request& request);
// Reads texts that end the answer from the field `name`: a text or a list.
Status read_stop(BodyFields& fields, std::string_view name, Request& request);
// Reads "prediction": text that the answer may largely repeat, which is used for drafts. It does not change the answer.
Status read_prediction(BodyFields& fields, const ServedModel& model, Request& request);
Status read_stream(BodyFields& fields, StreamOptions& stream);
// Accepts fields without effect, such as "user", and those of neutral_fields.h.
Status read_the_rest(BodyFields& fields);
// A prompt is not tokenized further than this. More tokens than the context holds, so that a refusal can state the
// number of tokens of a prompt which is a little too long.
int64_t most_prompt_tokens(const ServedModel& model);
// Error: the prompt does not fit into the context, with the text and code that clients recognize, and the field.
Status check_fits(BodyFields& fields, std::string_view name, const ServedModel& model, std::span<const int32_t> prompt);
// Keeps the last `most` tokens; -1: as many as fit into the context.
Status truncate_prompt(BodyFields& fields, const ServedModel& model, std::vector<int32_t>& prompt);

// Returns the tokens of bad words, each with and without a space before it, as vLLM encodes them, because a word may
// occur in the middle of a text.
Result<std::vector<std::vector<int32_t>>> encode_bad_words(const ServedModel& model,
                                                           std::span<const std::string> words);

}  // namespace nibble
