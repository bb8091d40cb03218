// Requests to a model and the events of their answers, as plain values without HTTP.
//
// Answers depend only on the model, the prompt and the parameters. Other requests, the order of arrival, chunks, cache
// hits, preemptions and drafts do not change a bit (docs/architecture.md 4).
#pragma once

#include "base/error.h"
#include "kernels/sampling.h"

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace nibble {

// Restricts the tokens of an answer: a grammar, a schema, a list of choices. One object serves one choice of one
// request and is used by one thread at a time.
class TokenConstraint {
public:
    virtual ~TokenConstraint() = default;
    // Returns a copy with the same state, for the other choices of the request and for looking ahead along a draft.
    virtual std::unique_ptr<TokenConstraint> copy() const = 0;
    // Sets the bits of the tokens that may follow and clears all others: bit i % 32 of word i / 32 belongs to token i.
    // [(vocab + 31) / 32]. End tokens are ignored; see may_end().
    virtual void mask(std::span<uint32_t> allowed) = 0;
    // Adds the next token, never an end token. Returns false, without a change, if mask() does not allow it.
    virtual bool accept(int32_t token) = 0;
    // Returns true if the accepted text is complete, so that an end token may follow.
    virtual bool may_end() const = 0;
    // Returns true if the accepted text is complete and nothing can follow, so that the answer ends.
    virtual bool finished() const = 0;
};

using EngineClock = std::chrono::steady_clock;

struct Request {
    std::string id;               // names the request in messages
    std::vector<int32_t> prompt;  // at least one token
    SamplingParams sampling;      // includes the seed
    // Random numbers depend on (sampling.seed, sequence + choice, position).
    uint64_t sequence = 0;
    int32_t choices = 1;  // number of answers ("n"); they share the computation of the prompt
    // Number of tokens at the end of the prompt that are the beginning of the answer, from an earlier request. The
    // answer's text and its stop strings include them. Not possible with penalties, min_tokens or a constraint.
    int64_t resumed = 0;
    int64_t max_tokens = 512;  // most tokens of an answer; the context may allow fewer
    int64_t min_tokens = 0;    // until then, no end token is chosen and no stop string ends the answer

    std::vector<int32_t> eos;       // tokens that end an answer; empty: none do
    std::vector<std::string> stop;  // texts that end an answer; they may span tokens
    bool keep_stop = false;         // include the stop string in the text
    bool skip_special = true;       // omit control tokens from the text

    // Changes to the logits, applied in this order before penalties and temperature.
    std::shared_ptr<const TokenConstraint> constraint;  // in its initial state
    std::vector<int32_t> allowed;                       // only these tokens and end tokens are allowed; empty: all
    std::vector<std::vector<int32_t>> bad_words;        // token sequences whose last token must not follow the others
    std::vector<std::pair<int32_t, float>> bias;        // (token, value to add); every token at most once

    // Log-probabilities refer to the raw distribution, before all changes, penalties and temperature. If this is set,
    // those of answer tokens refer to the distribution that is sampled, after temperature and filters (with temperature
    // 0: the raw one). No other change of the logits is then allowed.
    bool sampled_logprobs = false;
    int32_t top_logprobs = -1;     // number of most likely tokens to return in addition to the chosen one; -1: only the
                                   // chosen one
    int32_t prompt_logprobs = -1;  // the same for prompt tokens; -1: none
    int32_t priority = 0;          // lower values are served first
    std::string cache_salt;        // requests with different salts share no cache entries
    std::optional<int64_t> drafts;  // most draft tokens per step; no value: the engine's setting; 0: none
    std::vector<int32_t> expected;  // text that the answer may largely repeat; drafts also use it (PromptLookup)
    // Choices that are unfinished at this time end with FinishReason::deadline.
    std::optional<EngineClock::time_point> deadline;
};

enum class FinishReason : uint8_t { none, stop, length, cancelled, deadline, error };
std::string_view finish_name(FinishReason reason);  // returns "stop" (a stop string or end token), "length",
                                                    // "cancelled" ...

struct TokenLogprob {
    int32_t id = 0;
    float logprob = 0;
    bool operator==(const TokenLogprob&) const = default;
};
struct GeneratedToken {
    int32_t id = 0;
    float logprob = 0;
    std::vector<TokenLogprob> top;  // most likely first, of equally likely ones the lower id; Request::top_logprobs
                                    // entries
    int32_t rank = 0;  // for prompt tokens: the rank among all tokens in that order, starting at 1; 0: not computed
    bool operator==(const GeneratedToken&) const = default;
};

// Cost of a request, summed over its choices. Seconds on a steady clock.
struct RequestReport {
    int64_t prompt_tokens = 0;     // counted once, whatever the number of choices
    int64_t cached_tokens = 0;     // prompt tokens that were found in the prefix cache
    int64_t generated_tokens = 0;  // sum over all choices
    int64_t draft_tokens = 0, accepted_tokens = 0;
    int64_t preemptions = 0;
    double queue_seconds = 0;     // from submit() to the first step
    double prompt_seconds = 0;    // from the first step to the first token
    double generate_seconds = 0;  // from the first token to the end
};

// An event of one choice. Views are valid only during the call.
struct AnswerEvent {
    int32_t choice = 0;
    std::string_view text;                   // final text: whole characters, without any part of a stop string
    std::span<const GeneratedToken> tokens;  // new tokens, including an end token; their text may come later
    // Set in the first event of choice 0 if Request::prompt_logprobs is set: one entry per token of the prompt. The
    // first has no probability; its logprob is 0 and its top is empty. The sink may move the entries.
    std::span<GeneratedToken> prompt;
    FinishReason finish = FinishReason::none;  // not none: this is the choice's last event
    std::string_view stop;                     // the stop string that ended the choice
    int32_t stop_token = -1;                   // the end token that ended the choice
    // Set with FinishReason::error. The kind is `usage` if the request's own rules allow no token.
    std::string_view error;
    ErrorKind error_kind = ErrorKind::other;
    const RequestReport* report = nullptr;  // set in the request's last event, when every choice has finished
};

// Called by the engine's thread, or inside Engine::step() if the engine has none. Must not block or throw. Of the
// engine's functions it may call only cancel() and submit().
using AnswerSink = std::function<void(const AnswerEvent&)>;

}  // namespace nibble
