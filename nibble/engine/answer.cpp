#include "engine/answer.h"

#include <algorithm>
#include <numeric>

namespace nibble {

GeneratedToken scored(int32_t id, std::span<const float> log_probs, int32_t top) {
    GeneratedToken token{.id = id, .logprob = log_probs[static_cast<size_t>(id)]};
    if (top <= 0) return token;
    std::vector<int32_t> order(log_probs.size());
    std::iota(order.begin(), order.end(), 0);
    const auto end = order.begin() + std::min<ptrdiff_t>(top, std::ssize(order));
    std::partial_sort(order.begin(), end, order.end(), [&](int32_t a, int32_t b) {
        const float x = log_probs[static_cast<size_t>(a)], y = log_probs[static_cast<size_t>(b)];
        return x != y ? x > y : a < b;
    });
    for (auto i = order.begin(); i != end; ++i) token.top.push_back({*i, log_probs[static_cast<size_t>(*i)]});
    return token;
}

int32_t rank_of(int32_t id, std::span<const float> log_probs) {
    const auto at = static_cast<size_t>(id);
    const float own = log_probs[at];
    const auto before = std::ranges::count(log_probs.first(at), true, [&](float x) { return x >= own; });
    const auto after = std::ranges::count(log_probs.subspan(at), true, [&](float x) { return x > own; });
    return static_cast<int32_t>(1 + before + after);
}

Answer::Answer(const SharedRequest& shared, std::span<const int32_t> prompt, uint64_t sequence,
               const std::optional<Tokenizer>& tokenizer, int64_t context)
    : shared_(&shared),
      request_(&shared.request),
      prompt_(std::ssize(prompt)),
      most_tokens_(std::min(request_->max_tokens, context - prompt_)),
      tokens_(prompt.begin(), prompt.end()),
      sampler_(request_->sampling, sequence, prompt),
      rules_(shared),
      constraint_(request_->constraint ? request_->constraint->copy() : nullptr),
      stop_(shared.stop) {
    if (tokenizer) decoder_.emplace(*tokenizer, request_->skip_special);
    if (decoder_)
        for (const int32_t id : prompt.last(static_cast<size_t>(request_->resumed)))
            news_.text += stop_.push(decoder_->push(static_cast<TokenId>(id)));
    if (constraint_ && constraint_->finished()) finish_ = FinishReason::stop;
}

void Answer::choose(std::span<float> logits, std::span<float> log_probs, const ElementwiseKernels& kernels) {
    if (kernels.first_nonfinite(logits.data(), std::ssize(logits)) >= 0)
        return end(fail("the logits of token {} contain a NaN or an infinity", generated()));
    if (request_->sampled_logprobs) {
        std::ranges::copy(logits, log_probs.begin());
        filter_.restrict(log_probs, request_->sampling);
        kernels.log_softmax(log_probs.data(), std::ssize(log_probs), log_probs.data());
    } else {
        kernels.log_softmax(logits.data(), std::ssize(logits), log_probs.data());
    }
    if ((masks() || rules_.biases()) && !rules_.apply(logits, said(), constraint_.get()))
        return end(fail(ErrorKind::usage,
                        "no token is allowed after token {} of the answer: the request's constraint, "
                        "allowed_token_ids, bad_words and logit_bias exclude all tokens",
                        generated()));
    const int32_t id = sampler_.sample(logits, std::ssize(tokens_));
    accept(scored(id, log_probs, request_->top_logprobs));
}

void Answer::accept(GeneratedToken token) {
    const int32_t id = token.id;
    const bool early = generated() < request_->min_tokens;
    sampler_.accept(id);
    tokens_.push_back(id);
    news_.tokens.push_back(std::move(token));
    if (has_bit(shared_->lists.ends, id)) {
        stop_token_ = id;
        return end(FinishReason::stop);
    }
    if (decoder_) {
        std::string text = decoder_->push(static_cast<TokenId>(id));
        news_.text += early ? std::move(text) : stop_.push(text);
    }
    if (stop_.found()) {
        finish_ = FinishReason::stop;
        if (request_->keep_stop) news_.text += stop_.matched();
        return;
    }
    if (constraint_) {
        if (!constraint_->accept(id)) return end(fail("the constraint rejected token {}, which it had allowed", id));
        if (constraint_->finished()) return end(FinishReason::stop);
    }
    if (generated() >= most_tokens_) end(FinishReason::length);
}

std::vector<std::vector<uint32_t>> Answer::masks_along(std::span<const int32_t> draft, int64_t vocab) {
    std::vector<std::vector<uint32_t>> out(draft.size() + 1);
    const auto now = rules_.mask(vocab, said(), constraint_.get());
    out[0].assign(now.begin(), now.end());
    if (draft.empty()) return out;
    LogitRules rules(*shared_);
    const std::unique_ptr<TokenConstraint> look = constraint_ ? constraint_->copy() : nullptr;
    std::vector<int32_t> answer(said().begin(), said().end());
    for (size_t i = 0; i < draft.size(); ++i) {
        if (look && (!look->accept(draft[i]) || look->finished())) break;
        answer.push_back(draft[i]);
        const auto mask = rules.mask(vocab, answer, look.get());
        out[i + 1].assign(mask.begin(), mask.end());
    }
    return out;
}

void Answer::trim(std::vector<int32_t>& draft) const {
    if (!constraint_) return;
    const std::unique_ptr<TokenConstraint> look = constraint_->copy();
    size_t kept = 0;
    while (kept < draft.size() && look->accept(draft[kept])) ++kept;
    draft.resize(kept);
}

void Answer::end(Error error) {
    if (finished()) return;
    error_ = std::move(error);
    end(FinishReason::error);
}

void Answer::end(FinishReason reason) {
    if (finished()) return;
    finish_ = reason;
    if (!decoder_) return;
    std::string rest = stop_.push(decoder_->finish());
    if (!stop_.found()) rest += stop_.finish();
    news_.text += rest;
}

}  // namespace nibble
