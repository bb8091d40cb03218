// The size of the largest possible answer to a request, computed before the request is accepted.
#pragma once

#include "engine/request.h"

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace nibble {

struct AnswerForms {
    bool whole = false;      // the answer is collected until its end; false: a stream, of which only the unsent part is
                             // stored
    bool echo = false;       // the answer contains the prompts, with log-probabilities if requested
    bool token_ids = false;  // the answer contains token ids of prompts and answers
    bool prompt_logprobs = false;  // every choice contains the log-probabilities of Request::prompt_logprobs
    int64_t copied = 0;            // bytes of the request that are copied for every choice
};

// Returns an upper bound of the bytes for engine and answer, given the number of tokens of each prompt.
int64_t largest_answer(const Request& like, std::span<const int64_t> prompts, int64_t context, const AnswerForms& form);
// Returns the largest number of answer tokens with which largest_answer() stays within `bytes`, at most
// like.max_tokens; at least 1.
int64_t most_tokens_within(int64_t bytes, Request like, int64_t prompt, int64_t context, const AnswerForms& form);

// Counts the memory that the answers of all requests share. Thread-safe.
class AnswerMemory {
public:
    explicit AnswerMemory(int64_t bytes) : left_(std::make_shared<std::atomic<int64_t>>(bytes)) {}
    // Reserves `bytes` until the result is destroyed. Returns null if less is left.
    std::shared_ptr<void> take(int64_t bytes);

private:
    std::shared_ptr<std::atomic<int64_t>> left_;
};

}  // namespace nibble
