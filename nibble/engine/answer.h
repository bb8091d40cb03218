// One answer: the tokens of the prompt and the answer, the choice of the next token, the text that is final so far, and
// the end of the answer. Independent of batches and caches.
#pragma once

#include "base/error.h"
#include "engine/logit_rules.h"
#include "engine/sampler.h"
#include "kernels/elementwise.h"
#include "text/tokenizer.h"

namespace nibble {

class Answer {
public:
    // `shared` must be checked and outlive the answer; the prompt is copied. sequence: number of the random sequence.
    // context: most tokens of prompt and answer together.
    Answer(const SharedRequest& shared, std::span<const int32_t> prompt, uint64_t sequence,
           const std::optional<Tokenizer>& tokenizer, int64_t context);

    const std::vector<int32_t>& tokens() const { return tokens_; }  // tokens of the prompt, then of the answer
    int64_t prompt() const { return prompt_; }                      // number of tokens of the prompt
    int64_t generated() const { return std::ssize(tokens_) - prompt_; }
    int64_t tokens_left() const { return most_tokens_ - generated(); }
    bool finished() const { return finish_ != FinishReason::none; }
    FinishReason finish() const { return finish_; }

    // Chooses the token that follows tokens() from its row of logits. `logits` and `log_probs`, both [vocab], are
    // overwritten. If no token is allowed, the answer ends with an error. Precondition: !finished().
    void choose(std::span<float> logits, std::span<float> log_probs, const ElementwiseKernels& kernels);
    // Computes, before choose(), the mask of tokens that may follow.
    void prepare(int64_t vocab) {
        if (!finished()) rules_.mask(vocab, said(), constraint_.get());
    }
    // Returns true if token_request(), with a mask, has everything that a device needs to choose the tokens.
    bool on_device() const {
        if (request_->sampled_logprobs && (rules_.masks(0) || request_->sampling.penalizes())) return false;
        return !rules_.biases() && request_->top_logprobs <= 0;
    }
    // Returns true if some token is forbidden `ahead` tokens after tokens().
    bool masks(int64_t ahead = 0) const { return rules_.masks(generated() + ahead); }
    // Returns the masks of the tokens that may follow tokens() and each token of a trimmed draft; an empty mask allows
    // every token. The mask after the end of a constraint is empty too, because no token is chosen there.
    std::vector<std::vector<uint32_t>> masks_along(std::span<const int32_t> draft, int64_t vocab);
    TokenRequest token_request(int64_t ahead = 0) const {
        TokenRequest r = sampler_.request(std::ssize(tokens_) + ahead);
        r.sampled_logprob = request_->sampled_logprobs;
        return r;
    }
    void accept(GeneratedToken token);
    // Shortens a draft to the tokens that the constraint allows.
    void trim(std::vector<int32_t>& draft) const;
    // End an answer that is not finished; with an error the reason is FinishReason::error.
    void end(FinishReason reason);
    void end(Error error);

    // Text and tokens since the last call of take().
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

// Returns a token with its log-probability and the `top` most likely tokens, most likely first; of equally likely ones
// the lower id first.
GeneratedToken scored(int32_t id, std::span<const float> log_probs, int32_t top);

// Returns the rank of `id` among all tokens in that order, starting at 1.
int32_t rank_of(int32_t id, std::span<const float> log_probs);

}  // namespace nibble
