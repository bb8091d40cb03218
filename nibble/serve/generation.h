// Generation as a value: what one prompt has produced so far and when it is over; and the loop that feeds several of
// them through a model together. Bits of an answer do not depend on what else runs (design.md 4).
#pragma once

#include "model/language_model.h"
#include "serve/sampler.h"
#include "serve/stop_strings.h"
#include "text/tokenizer.h"

#include <atomic>
#include <functional>
#include <string>
#include <vector>

namespace nibble {

struct GenerationParams {
    SamplingParams sampling;
    int64_t max_tokens = 512;       // fewer where the model's context ends
    std::vector<std::string> stop;  // end the answer and are not part of it; may span tokens
    std::vector<int32_t> eos;       // tokens that end the answer
};

enum class FinishReason : uint8_t { none, stop, length, cancelled };
std::string_view finish_name(FinishReason reason);  // "stop" (a stop string or end token), "length", "cancelled"

struct GeneratedToken {
    int32_t id = 0;
    float logprob = 0;  // of the raw distribution: before penalties, temperature and filters
};

// Error: an empty prompt, an id outside [0, vocab), no room left in the context; names the position.
Status check_prompt(std::span<const int32_t> prompt, int64_t vocab, int64_t context);

class Generation {
public:
    // `prompt` and `params` are checked; `sequence` keys the random numbers. context: tokens that prompt and answer may
    // have together.
    Generation(const Tokenizer& tokenizer, std::vector<int32_t> prompt, GenerationParams params, uint64_t sequence,
               int64_t context);

    const std::vector<int32_t>& prompt() const { return prompt_; }
    const std::vector<GeneratedToken>& tokens() const { return tokens_; }  // an end token included
    const std::string& text() const { return text_; }                      // without end token and stop string
    FinishReason finish() const { return finish_; }
    bool finished() const { return finish_ != FinishReason::none; }
    int64_t max_tokens() const { return params_.max_tokens; }

    // Takes the row that follows what has been generated: samples, and returns the text that has become certain. Whole
    // characters only. `logits` is scratch afterwards. Precondition: !finished().
    std::string accept(std::span<float> logits, std::span<const float> log_probs);
    // The same in two steps, for models that choose tokens themselves.
    TokenRequest request() const { return sampler_.request(position()); }
    std::string accept(int32_t id, float logprob);
    // Ends an answer that is not finished; returns the rest of its text.
    std::string cancel();

private:
    int64_t position() const { return static_cast<int64_t>(prompt_.size() + tokens_.size()); }  // of the next token
    std::string end(FinishReason reason);
    std::string add(std::string text);

    std::vector<int32_t> prompt_;
    GenerationParams params_;
    Sampler sampler_;
    StreamDecoder decoder_;
    StopStrings stop_;
    std::vector<GeneratedToken> tokens_;
    std::string text_;
    FinishReason finish_ = FinishReason::none;
};

// A sequence and the tokens in it: what the next turn of a chat continues.
struct Past {
    Sequence sequence;
    std::vector<int32_t> tokens;
};

struct GenerateOptions {
    int64_t batch = 16;       // answers that run together
    int64_t step_rows = 512;  // rows of a forward pass at most: long prompts go through in pieces
    std::function<void(size_t generation, std::string_view text)> on_text;  // may be empty
    std::function<void(size_t generation)> on_finish;                       // may be empty
    const std::atomic<bool>* stop = nullptr;                                // cancels what is unfinished
};

struct GenerateStats {
    int64_t prompt_tokens = 0, prompt_tokens_reused = 0, generated_tokens = 0;
    double prompt_seconds = 0;    // forward passes with rows of a prompt
    double generate_seconds = 0;  // all others
};

// Runs all to their end, in order of admission. Prompts and parameters were checked.
Result<GenerateStats> generate(const LanguageModel& model, std::span<Generation> generations,
                               const GenerateOptions& options);

// One answer that continues `past` where the prompt begins with its tokens, and starts anew in `pool` where it does
// not. Afterwards `past` holds prompt and answer, but for the last token.
Result<GenerateStats> generate(const LanguageModel& model, KvPool& pool, Past& past, Generation& generation,
                               const GenerateOptions& options);

}  // namespace nibble
