// An answer on its way through the engine, and the request it belongs to.
#pragma once

#include "serve/answer.h"
#include "serve/lookup.h"
#include "serve/prefix_cache.h"

#include <chrono>
#include <compare>
#include <memory>
#include <optional>
#include <vector>

namespace nibble {

// A request that was admitted.
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
    uint64_t handle = 0;  // rises with every request
    int32_t open;         // choices that have not finished
    bool cancelled = false;
    RequestReport report;
    EngineClock::time_point submitted;
    std::optional<EngineClock::time_point> started, first_token;
    int64_t longest = 0;  // tokens of its longest choice that has finished
};

// The order of service: smaller first.
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
    // Of the text, with the tokens that steps under way will add.
    int64_t length() const { return std::ssize(answer.tokens()) + pending; }
    // Tokens that have not gone through the model: at least the last one.
    int64_t left() const { return length() - sequence->position(); }
    // One row a step, or a few after a draft that was wrong.
    bool decodes() const { return left() == 1 || (answer.generated() > 0 && left() <= most_rewind); }
    bool scores_prompt() const { return index == 0 && job->request.prompt_logprobs >= 0 && !prompt_scored; }

    std::shared_ptr<Job> job;
    int32_t index = 0;
    Answer answer;
    std::optional<Sequence> sequence;  // while it runs
    PrefixCache::Path path;
    int64_t state_mark = 0;  // a position at which later prompts want the states
    bool forks = false;      // choices of the request begin where this one has read the prompt
    bool alone = false;      // a step with it failed: it runs by itself until it is known whose fault it was
    bool on_host = false;    // the device left the next token to the host
    int64_t pending = 0;     // tokens that steps under way add and that nobody knows yet: one each
    int64_t carried = -1;    // the row of the last of them which gives it
    int64_t epoch = 0;       // rises where the sequence is given back: what older steps add is not heard any more
    int steps = 0;           // under way that it is part of
    std::optional<PromptLookup> lookup;
    std::vector<int32_t> predicted;  // that may follow the first `predicted_at` tokens
    int64_t predicted_at = 0;
    StateCopy before_draft;
    std::optional<EngineClock::time_point> last_token;
    std::vector<GeneratedToken> prompt_scores;
    bool prompt_scored = false;

    // Of the step that is planned or under way: tokens [position, position + base), then a guess.
    int64_t base = 0;
    bool wants_row = false;  // of the last of them
    std::vector<int32_t> draft, fed;
    int64_t right = 0;  // of the draft
};

}  // namespace nibble
