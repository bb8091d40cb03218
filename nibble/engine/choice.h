// A choice (one answer of a request) in the engine, and the request that it belongs to.
#pragma once

#include "engine/answer.h"
#include "engine/lookup.h"
#include "engine/prefix_cache.h"

#include <chrono>
#include <compare>
#include <memory>
#include <optional>
#include <vector>

namespace nibble {

// A request that was accepted.
struct Job {
    Job(SharedRequestPtr of, std::vector<int32_t> tokens, uint64_t numbers, AnswerSink hears)
        : shared(std::move(of)),
          request(shared->request),
          prompt(std::move(tokens)),
          sequence(numbers),
          sink(std::move(hears)),
          open(request.choices) {}
    Job(const Job&) = delete;
    Job& operator=(const Job&) = delete;

    const SharedRequestPtr shared;
    const Request& request;
    const std::vector<int32_t> prompt;
    const uint64_t sequence;
    AnswerSink sink;
    uint64_t handle = 0;  // increases with every request
    int32_t open;         // number of choices that have not finished
    bool cancelled = false;
    RequestReport report;
    EngineClock::time_point submitted;
    std::optional<EngineClock::time_point> started, first_token;
    int64_t longest = 0;  // tokens of the longest finished choice
};

// Order of service: smaller values first.
struct ChoiceOrder {
    int32_t priority = 0;
    uint64_t handle = 0;
    int32_t choice = 0;
    auto operator<=>(const ChoiceOrder&) const = default;
};

struct Choice {
    Choice(std::shared_ptr<Job> of, int32_t number, const std::optional<Tokenizer>& tokenizer, int64_t context)
        : job(std::move(of)),
          index(number),
          answer(*job->shared, job->prompt, job->sequence + static_cast<uint64_t>(number), tokenizer, context) {}

    ChoiceOrder order() const { return {job->request.priority, job->handle, index}; }
    // Returns the length of the text, including tokens that steps in flight will add.
    int64_t length() const { return std::ssize(answer.tokens()) + pending; }
    // Returns the number of tokens that have not gone through the model: at least the last one.
    int64_t left() const { return length() - sequence->position(); }
    // Returns true if the choice is decoding: one row per step, or a few after a rejected draft.
    bool decodes() const { return left() == 1 || (answer.generated() > 0 && left() <= most_rewind); }
    bool scores_prompt() const { return index == 0 && job->request.prompt_logprobs >= 0 && !prompt_scored; }

    std::shared_ptr<Job> job;
    int32_t index = 0;
    Answer answer;
    std::optional<Sequence> sequence;  // set while the choice runs
    PrefixCache::Path path;
    int64_t state_mark = 0;  // position at which recurrent states are kept for later prompts
    bool forks = false;      // other choices of the request fork from this one when it has read the prompt
    bool alone = false;      // a step with this choice failed; it runs alone until the cause is known
    bool on_host = false;    // the device left the choice of the next token to the host
    int64_t pending = 0;     // tokens of steps in flight that are not known yet, one per step
    int64_t carried = -1;    // row of the latest of these steps that gives the token
    int64_t epoch = 0;       // incremented when the sequence is returned; results of older steps are then ignored
    int steps = 0;           // steps in flight that contain the choice
    std::optional<PromptLookup> lookup;
    std::vector<int32_t> predicted;  // draft tokens that may follow the first `predicted_at` tokens
    int64_t predicted_at = 0;
    StateCopy before_draft;
    std::optional<EngineClock::time_point> last_token;
    std::vector<GeneratedToken> prompt_scores;
    bool prompt_scored = false;

    // Parts of the planned or running step: tokens [position, position + base), then a draft.
    int64_t base = 0;
    bool wants_row = false;  // true if logits of the last of these tokens are needed
    std::vector<int32_t> draft, fed;
    int64_t right = 0;  // accepted tokens of the draft
};

}  // namespace nibble
