#include "server/answer_size.h"

#include <algorithm>

namespace nibble {
namespace {

// Bytes of memory, each an upper bound of usual cases: tokens have about four bytes of text. JSON sizes include member
// names.
constexpr int64_t choice_bytes = 4096;  // bytes of the engine's objects and of the answer's objects for one choice
constexpr int64_t id_bytes = 4;         // bytes of a token in the engine
constexpr int64_t event_bytes = 24;     // bytes of a token in an event
constexpr int64_t text_bytes = 16;      // bytes of a token in a whole answer, collected and written
constexpr int64_t id_text_bytes = 16;   // bytes of a token id in JSON, collected and written
constexpr int64_t score_bytes = 8;      // bytes of a log-probability in the engine
constexpr int64_t score_json = 320;     // bytes of a log-probability in a whole answer, collected and written
constexpr int64_t prompt_json = 96;     // bytes of a log-probability of the prompt, in vLLM's form
constexpr int64_t seen_bytes = 48;      // bytes of a token that penalties count
constexpr int64_t lookup_bytes = 160;   // bytes of a token in the index of drafts

// Requests have up to 2^40 tokens, so doubles are used, whose sums do not overflow.
double bytes_of_prompt(const Request& r, double prompt, double context, const AnswerForms& form) {
    const double choices = r.choices;
    const double tokens = std::clamp<double>(static_cast<double>(r.max_tokens), 1, std::max(1.0, context - prompt));
    const double scores = r.top_logprobs >= 0 ? 1.0 + r.top_logprobs : 0;
    double token = id_bytes + event_bytes + scores * score_bytes;
    if (form.whole) token += text_bytes + scores * score_json + (form.token_ids ? id_text_bytes : 0);
    double choice = choice_bytes + static_cast<double>(form.copied) + id_bytes * prompt + tokens * token;
    if (r.sampling.penalizes()) choice += seen_bytes * (prompt + tokens);
    if (!r.expected.empty() || r.drafts.value_or(0) > 0)
        choice += lookup_bytes * (prompt + tokens + static_cast<double>(r.expected.size()));
    if (form.echo) choice += prompt * (text_bytes + scores * score_json);
    if (form.token_ids) choice += prompt * id_text_bytes;
    double once = 0;
    if (r.prompt_logprobs >= 0) {
        const double entries = prompt * (2.0 + r.prompt_logprobs);
        once += 2 * score_bytes * entries;
        if (form.prompt_logprobs) once += prompt_json * entries * (1 + choices);
    }
    return once + choices * choice;
}

}  // namespace

int64_t largest_answer(const Request& like, std::span<const int64_t> prompts, int64_t context,
                       const AnswerForms& form) {
    double bytes = 0;
    for (const int64_t prompt : prompts)
        bytes += bytes_of_prompt(like, static_cast<double>(prompt), static_cast<double>(context), form);
    return static_cast<int64_t>(std::min(bytes, 1e18));
}

int64_t most_tokens_within(int64_t bytes, Request like, int64_t prompt, int64_t context, const AnswerForms& form) {
    int64_t low = 1, high = std::max<int64_t>(1, std::min(like.max_tokens, context - prompt));
    while (low < high) {
        like.max_tokens = low + (high - low + 1) / 2;
        if (largest_answer(like, {&prompt, 1}, context, form) <= bytes)
            low = like.max_tokens;
        else
            high = like.max_tokens - 1;
    }
    return low;
}

std::shared_ptr<void> AnswerMemory::take(int64_t bytes) {
    if ((*left_ -= bytes) < 0) {
        *left_ += bytes;
        return nullptr;
    }
    return {left_.get(), [left = left_, bytes](void*) { *left += bytes; }};
}

}  // namespace nibble
