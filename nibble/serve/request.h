// A request as plain values: what is asked of a model, and what comes back while the model answers. Nothing here knows
// of HTTP.
//
// What comes back is a function of the model, the prompt and the parameters alone. Neither the other requests nor the
// order of arrival, chunks, cache hits, preemptions or drafts change a bit of it (docs/architecture.md 4).
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

// What an answer may say next: a grammar, a schema, a list of choices. One object serves one choice of one request and
// is used by one thread at a time.
class TokenConstraint {
public:
    virtual ~TokenConstraint() = default;
    // The same state in a new object: for the other choices of the request, and to look ahead along a draft.
    virtual std::unique_ptr<TokenConstraint> copy() const = 0;
    // Sets the bits of the tokens that may follow and clears all others: token i is bit i % 32 of word i / 32. End
    // tokens are none of the constraint's business: may_end() says whether one may follow. [(vocab + 31) / 32]
    virtual void mask(std::span<uint32_t> allowed) = 0;
    // The token that follows, never an end token. False, and nothing changes, where mask() does not allow it.
    virtual bool accept(int32_t token) = 0;
    // What was accepted is complete as it is.
    virtual bool may_end() const = 0;
    // What was accepted is complete, and nothing can follow: the answer ends there.
    virtual bool finished() const = 0;
};

using EngineClock = std::chrono::steady_clock;

struct Request {
    std::string id;               // names the request in messages
    std::vector<int32_t> prompt;  // at least one token
    SamplingParams sampling;      // its seed, too
    // The numbers drawn are those of (sampling.seed, sequence + choice, position).
    uint64_t sequence = 0;
    int32_t choices = 1;  // answers ("n"); they share the work on the prompt
    // So many last tokens of the prompt are an answer's beginning that an earlier request said: the text and its stop
    // strings begin with them. Not together with penalties, min_tokens or a constraint.
    int64_t resumed = 0;
    int64_t max_tokens = 512;  // of an answer; fewer where the context ends
    int64_t min_tokens = 0;    // before these, no end token is chosen and no stop string ends the answer

    std::vector<int32_t> eos;       // tokens that end an answer: the model's, or none to ignore them
    std::vector<std::string> stop;  // texts that end an answer; may span tokens
    bool keep_stop = false;         // the stop string belongs to the text
    bool skip_special = true;       // control tokens leave no text

    // Changes to the logits, in this order, before penalties and temperature.
    std::shared_ptr<const TokenConstraint> constraint;  // in its first state
    std::vector<int32_t> allowed;                       // only these tokens, and end tokens; empty: all
    std::vector<std::vector<int32_t>> bad_words;        // a word's last token never follows its other tokens
    std::vector<std::pair<int32_t, float>> bias;        // added; every token once

    // Log-probabilities are those of the raw distribution: before all changes, penalties and temperature. With this, of
    // an answer, those of the distribution that is drawn from: after temperature and filters (temperature 0: the raw
    // one); nothing else may change logits then.
    bool sampled_logprobs = false;
    int32_t top_logprobs = -1;      // of so many likeliest tokens beside the chosen one; -1: of the chosen one alone
    int32_t prompt_logprobs = -1;   // the same for the tokens of the prompt; -1: none
    int32_t priority = 0;           // lower ones are served first
    std::string cache_salt;         // requests with different salts share no cache
    std::optional<int64_t> drafts;  // tokens that a step guesses ahead at most; default: the engine's; 0: none
    std::vector<int32_t> expected;  // what the answer may largely say: guesses look here too (PromptLookup)
    // What is unfinished then ends with FinishReason::deadline.
    std::optional<EngineClock::time_point> deadline;
};

enum class FinishReason : uint8_t { none, stop, length, cancelled, deadline, error };
std::string_view finish_name(FinishReason reason);  // "stop" (a stop string or end token), "length", "cancelled" ...

struct TokenLogprob {
    int32_t id = 0;
    float logprob = 0;
    bool operator==(const TokenLogprob&) const = default;
};
struct GeneratedToken {
    int32_t id = 0;
    float logprob = 0;
    std::vector<TokenLogprob> top;  // likeliest first, of equal ones the lower id; Request::top_logprobs of them
    int32_t rank = 0;  // of a prompt's token: its place among all tokens in that order, from 1; 0: not counted
    bool operator==(const GeneratedToken&) const = default;
};

// What a request cost, all its choices together. Seconds on a steady clock.
struct RequestReport {
    int64_t prompt_tokens = 0;     // once, whatever the number of choices
    int64_t cached_tokens = 0;     // of them: found in the prefix cache
    int64_t generated_tokens = 0;  // of all choices
    int64_t draft_tokens = 0, accepted_tokens = 0;
    int64_t preemptions = 0;
    double queue_seconds = 0;     // from submit to the first step
    double prompt_seconds = 0;    // from the first step to the first token
    double generate_seconds = 0;  // from the first token to the end
};

// News of one choice. Views end with the call.
struct AnswerEvent {
    int32_t choice = 0;
    std::string_view text;                   // what has become certain: whole characters, no part of a stop string
    std::span<const GeneratedToken> tokens;  // new ones, an end token included; their text may come later
    // In the first event of choice 0 where Request::prompt_logprobs is given: one per token of the prompt; the first
    // has no probability, its logprob is 0 and its top empty. The sink may move them away.
    std::span<GeneratedToken> prompt;
    FinishReason finish = FinishReason::none;  // another: the choice's last event
    std::string_view stop;                     // the stop string that ended the choice
    int32_t stop_token = -1;                   // the end token that did
    // With FinishReason::error. The kind `usage`: the request's own rules leave no token that may follow.
    std::string_view error;
    ErrorKind error_kind = ErrorKind::other;
    const RequestReport* report = nullptr;  // in the request's last event: every choice has finished
};

// Called by the engine's thread, or inside Engine::step() where there is none. Does not block, does not throw, and of
// the engine calls cancel() and submit() at most.
using AnswerSink = std::function<void(const AnswerEvent&)>;

}  // namespace nibble
