#include "engine/request.h"

#include "engine/engine.h"
#include "engine/sampler.h"

#include <algorithm>
#include <cmath>

namespace nibble {
namespace {

Status check_ids(std::span<const int32_t> ids, int64_t vocab, std::string_view what) {
    for (const int32_t id : ids)
        if (id < 0 || id >= vocab) return fail("{} names token {}; the model's vocabulary has {}", what, id, vocab);
    return Ok{};
}

}  // namespace

std::string_view finish_name(FinishReason reason) {
    switch (reason) {
        case FinishReason::none:
            return "none";
        case FinishReason::stop:
            return "stop";
        case FinishReason::length:
            return "length";
        case FinishReason::cancelled:
            return "cancelled";
        case FinishReason::deadline:
            return "deadline";
        case FinishReason::error:
            return "error";
    }
    __builtin_unreachable();
}

Status check_prompt(std::span<const int32_t> prompt, int64_t vocab, int64_t context) {
    if (prompt.empty()) return fail("the prompt has no tokens");
    for (size_t i = 0; i < prompt.size(); ++i)
        if (prompt[i] < 0 || prompt[i] >= vocab)
            return fail("the prompt's token {} is {}; the model's vocabulary has {}", i, prompt[i], vocab);
    if (static_cast<int64_t>(prompt.size()) >= context)
        return fail("the prompt has {} tokens; the model's context of {} leaves no room for an answer", prompt.size(),
                    context);
    return Ok{};
}

Status check(const Request& r, int64_t vocab, int64_t context) {
    NIBBLE_CHECK(check_prompt(r.prompt, vocab, context));
    NIBBLE_CHECK(check_resumed(r, std::ssize(r.prompt)));
    return check_parameters(r, vocab);
}

Status check_resumed(const Request& r, int64_t prompt) {
    if (r.resumed < 0 || r.resumed >= prompt)
        return fail("resumed {} is not in [0, {}), the number of prompt tokens", r.resumed, prompt);
    return Ok{};
}

Status check_parameters(const Request& r, int64_t vocab) {
    NIBBLE_CHECK(check(r.sampling));
    if (r.choices < 1 || r.choices > most_choices) return fail("n {} is not in [1, {}]", r.choices, most_choices);
    if (r.max_tokens < 1) return fail("max_tokens {} is less than 1", r.max_tokens);
    if (r.min_tokens < 0 || r.min_tokens > r.max_tokens)
        return fail("min_tokens {} is not in [0, max_tokens {}]", r.min_tokens, r.max_tokens);
    if (r.top_logprobs < -1 || r.top_logprobs > vocab)
        return fail("top_logprobs {} is not in [0, {}]", r.top_logprobs, vocab);
    if (r.prompt_logprobs < -1 || r.prompt_logprobs > vocab)
        return fail("prompt_logprobs {} is not in [0, {}]", r.prompt_logprobs, vocab);
    if (r.drafts && (*r.drafts < 0 || *r.drafts > most_drafts))
        return fail("{} draft tokens are not in [0, {}]", *r.drafts, most_drafts);
    const SamplingParams& s = r.sampling;
    if (r.resumed > 0 && (s.penalizes() || r.min_tokens > 0 || r.constraint))
        return fail("resumed cannot be used with penalties, min_tokens or a constraint");
    if (r.sampled_logprobs &&
        (s.penalizes() || r.constraint || !r.allowed.empty() || !r.bad_words.empty() || !r.bias.empty()))
        return fail("sampled_logprobs requires that only temperature and filters change the distribution");
    NIBBLE_CHECK(check_ids(r.eos, vocab, "an end token"));
    NIBBLE_CHECK(check_ids(r.allowed, vocab, "allowed_token_ids"));
    for (const auto& word : r.bad_words) {
        if (word.empty()) return fail("a bad word has no tokens");
        NIBBLE_CHECK(check_ids(word, vocab, "a bad word"));
    }
    for (const auto& [id, value] : r.bias) {
        NIBBLE_CHECK(check_ids({&id, 1}, vocab, "logit_bias"));
        if (!std::isfinite(value) || std::abs(value) > 1e6f)
            return fail("logit_bias {} of token {} is not in [-1e6, 1e6]", value, id);
    }
    return Ok{};
}

}  // namespace nibble
