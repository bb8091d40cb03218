// One answer as a value: the tokens of a prompt and what follows them, how the next token is chosen, which text has
// become certain, and when the answer is over. Knows nothing of batches and caches.
#pragma once

#include "base/error.h"
#include "kernels/elementwise.h"
#include "serve/logit_rules.h"
#include "serve/sampler.h"
#include "text/tokenizer.h"

namespace nibble {

class Answer {
public:
    // `shared` is checked and outlives the answer, the prompt is copied. sequence: of the numbers that are drawn.
    // context: tokens that prompt and answer may have together.
    Answer(const SharedRequest& shared, std::span<const int32_t> prompt, uint64_t sequence,
           const std::optional<Tokenizer>& tokenizer, int64_t context);

    const std::vector<int32_t>& tokens() const { return tokens_; }  // the prompt's, then the answer's
    int64_t prompt() const { return prompt_; }                      // of them
    int64_t generated() const { return std::ssize(tokens_) - prompt_; }
    int64_t tokens_left() const { return most_tokens_ - generated(); }
    bool finished() const { return finish_ != FinishReason::none; }
    FinishReason finish() const { return finish_; }

    // The token behind tokens(), of its row of logits. `logits` and `log_probs`, both [vocab], are scratch afterwards.
    // A row without a token that may follow ends the answer with an error. Precondition: !finished().
    void choose(std::span<float> logits, std::span<float> log_probs, const ElementwiseKernels& kernels);
    // Finds out which tokens may follow, ahead of choose().
    void prepare(int64_t vocab) {
        if (!finished()) rules_.mask(vocab, said(), constraint_.get());
    }
    // Whether token_request(), with a mask, says all that a device needs to choose the tokens.
    bool on_device() const {
        if (request_->sampled_logprobs && (rules_.masks(0) || request_->sampling.penalizes())) return false;
        return !rules_.biases() && request_->top_logprobs <= 0;
    }
    // Whether some token may not follow `ahead` tokens behind tokens().
    bool masks(int64_t ahead = 0) const { return rules_.masks(generated() + ahead); }
    // What may follow tokens() and each token of a draft that was trimmed; empty: every token. Behind the end of what
    // the constraint holds to, where nothing is chosen, it is empty, too.
    std::vector<std::vector<uint32_t>> masks_along(std::span<const int32_t> draft, int64_t vocab);
    TokenRequest token_request(int64_t ahead = 0) const {
        TokenRequest r = sampler_.request(std::ssize(tokens_) + ahead);
        r.sampled_logprob = request_->sampled_logprobs;
        return r;
    }
    void accept(GeneratedToken token);
    // Shortens a draft to what the constraint lets follow.
    void trim(std::vector<int32_t>& draft) const;
    // Both end an answer that is not finished; an error with FinishReason::error.
    void end(FinishReason reason);
    void end(Error error);

    // What is new since the last call.
    struct News {
        std::string text;
        std::vector<GeneratedToken> tokens;
    };
    News take() { return std::exchange(news_, {}); }
    const std::string& stop() const { return stop_.matched(); }
    int32_t stop_token() const { return stop_token_; }
    const std::optional<Error>& error() const { return error_; }

private:
    std::span<const int32_t> said() const { return std::span(tokens_).subspan(static_cast<size_t>(prompt_)); }

    const SharedRequest* shared_;
    const Request* request_;  // shared_->request
    int64_t prompt_ = 0, most_tokens_ = 0;
    std::vector<int32_t> tokens_;
    Sampler sampler_;
    TokenFilter filter_;
    LogitRules rules_;
    std::unique_ptr<TokenConstraint> constraint_;
    std::optional<StreamDecoder> decoder_;
    StopStrings stop_;
    News news_;
    FinishReason finish_ = FinishReason::none;
    int32_t stop_token_ = -1;
    std::optional<Error> error_;
};

// The log-probability of `id`, and of the `top` likeliest tokens, likeliest first, of equal ones the lower id.
GeneratedToken scored(int32_t id, std::span<const float> log_probs, int32_t top);

// The place of `id` among all tokens in that order, from 1.
int32_t rank_of(int32_t id, std::span<const float> log_probs);

}  // namespace nibble
