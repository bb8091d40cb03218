// What the largest possible answer of a request takes, known before the request is accepted.
#pragma once

#include "serve/request.h"

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace nibble {

struct AnswerForms {
    bool whole = false;            // collected until its end; else a stream, of which only the unsent part is kept
    bool echo = false;             // the prompts stand in the answer, with their log-probabilities where it has some
    bool token_ids = false;        // the ids of prompts and answers, too
    bool prompt_logprobs = false;  // those of Request::prompt_logprobs, in every choice
    int64_t copied = 0;            // bytes of the request that every choice has a copy of
};

// Bytes that the engine and the answer take at most, for prompts of so many tokens each.
int64_t largest_answer(const Request& like, std::span<const int64_t> prompts, int64_t context, const AnswerForms& form);
// The most tokens of an answer that keep largest_answer() within `bytes`, at most like.max_tokens; at least 1.
int64_t most_tokens_within(int64_t bytes, Request like, int64_t prompt, int64_t context, const AnswerForms& form);

// Memory that the answers of all requests share.
class AnswerMemory {
public:
    explicit AnswerMemory(int64_t bytes) : left_(std::make_shared<std::atomic<int64_t>>(bytes)) {}
    // Counts `bytes` until the result ends. Null: so much is not left.
    std::shared_ptr<void> take(int64_t bytes);

private:
    std::shared_ptr<std::atomic<int64_t>> left_;
};

}  // namespace nibble
