// The engine answers requests with one model on one device. Continuous batching over a paged cache: a step runs the
// next token of every answer, and pieces of prompts after them. Answers start and end at every step.
//
// Threads: submit(), cancel(), stats(), limits(), capacity(), pause(), resume() and drain() may be called from any
// thread at any time. Events come from the engine's own thread after start(), otherwise from the thread that calls
// step(). step() is for one thread at a time, and only for an engine that was not started. While the engine steps, no
// other code may run the model or use its thread pool. The destructor cancels unfinished requests (their sinks get an
// event) and joins the thread.
//
//   NIBBLE_TRY(auto engine, Engine::create(model, tokenizer, {}));
//   auto admitted = engine->submit(std::move(request), [](const AnswerEvent& e) { ... });
//   if (!admitted.accepted()) ...
//   while (engine->step()) {}          // or engine->start(), once
#pragma once

#include "engine/histogram.h"
#include "engine/shared_request.h"
#include "model/language_model.h"
#include "text/tokenizer.h"

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace nibble {

// The source of draft tokens (engine/drafter.h).
enum class DraftSource : uint8_t {
    lookup,      // the text that followed an earlier occurrence of the last tokens
    prediction,  // the model's layers for multi-token prediction
};

struct EngineOptions {
    int64_t sequences = 0;   // most choices that run together; 0: 64 on a CPU, 1,024 on a GPU; at most 4,096
    int64_t step_rows = 0;   // most tokens per step (running answers first); 0: 512 on a CPU, 8,192 on a GPU
    int64_t mixed_rows = 0;  // most prompt rows in a step with running answers, which bounds the time between two of
                             // their tokens; 0: an eighth of step_rows
    double stretch = 0;  // limit of the same by time: the factor by which prompt rows may lengthen a step with running
                         // answers, estimated from earlier steps (engine/step_pace.h); 0: no limit
    int64_t queue = 4096;   // most waiting choices
    int64_t context = 0;    // most tokens of a prompt and its answer; 0: the model's limit
    int64_t kv_memory = 0;  // bytes for keys, values and recurrent states; 0: from the free memory, see memory_share
    double memory_share = 0.9;  // share of the device's free memory; for a model on the host, of a third of the host's
    bool prefix_cache = true;
    // Most draft tokens, for requests that do not set it. 0: only drafts from the text that a request expects.
    int64_t drafts = 0;
    DraftSource drafter = DraftSource::lookup;  // prediction requires a model that has loaded such layers (predicts())
    // For rl/mismatch_lab.h: after this many steps, the last of several running answers is preempted as if memory were
    // short. 0: never.
    int64_t preempt_every = 0;
    // Receives the number of rows of every step, on the engine's thread. May be empty.
    std::function<void(int64_t rows)> on_step;
};

inline constexpr int64_t most_drafts = 15, usual_looked_up = 8;
inline constexpr int32_t most_choices = 128;

// Counters since the engine was created, and current gauges.
struct EngineStats {
    int64_t running = 0, waiting = 0;  // numbers of choices
    int64_t deferred = 0;              // waiting choices for which another choice computes a shared prefix
    int64_t pages = 0, used_pages = 0,
            cached_pages = 0;  // used: by running answers; cached: idle pages of the prefix cache
    int64_t steps = 0, step_rows = 0;
    int64_t overlapped_steps = 0;  // steps launched before the tokens of the previous step were known
    int64_t deferred_rows = 0;  // rows whose masks and penalties were sent to the device while it computed their logits
    int64_t host_rows = 0;      // rows whose logits were copied to the host although the device chooses tokens
    double prompt_step_seconds = 0, answer_step_seconds = 0;  // time of steps with prompt rows, and of all other steps
    int64_t prompt_tokens = 0, generated_tokens = 0;  // prompt tokens: of accepted requests, including cached tokens
    int64_t cached_prompt_tokens = 0;                 // part of prompt_tokens that was found in the prefix cache
    int64_t prefix_queries = 0, prefix_hits = 0;      // tokens that were looked up and found
    int64_t prefix_evictions = 0;                     // pages of 64 tokens, summed over all blocks
    int64_t preemptions = 0;
    int64_t drafts = 0, draft_tokens = 0, accepted_tokens = 0;
    std::array<int64_t, most_drafts> accepted_at{};  // accepted draft tokens by position in the draft
    int64_t failed_drafts = 0;                       // steps without a draft because of an error: no memory, NaNs
    int64_t finished_stop = 0, finished_length = 0, finished_cancelled = 0, finished_deadline = 0, finished_error = 0;
    EngineHistograms histograms;
    BlockTimes block_times;
    double cache_share() const { return pages > 0 ? double(used_pages) / double(pages) : 0; }
};

// The treatment of unfinished answers by a pause.
enum class Unfinished : uint8_t {
    finish,  // they end first
    cancel,  // they are cancelled
    keep,    // they wait; when the engine continues, their pages are computed again from their tokens
};

// Result of submit().
struct Admission {
    enum class Refusal : uint8_t {
        none,
        invalid,   // the request can never run; the message states why
        full,      // the queue is full; try again after `retry_seconds`
        draining,  // the engine accepts no more requests
    };
    Refusal refusal = Refusal::none;
    uint64_t handle = 0;  // argument of cancel()
    std::string message;
    double retry_seconds = 0;
    bool accepted() const { return refusal == Refusal::none; }
};

// Errors, with the position: an empty prompt, an id outside [0, vocab), no space left in the context.
Status check_prompt(std::span<const int32_t> prompt, int64_t vocab, int64_t context);
// Errors that submit() reports as invalid: a value out of range or in conflict with another, with its name.
Status check(const Request& request, int64_t vocab, int64_t context);
// The two parts of check(): the parameters alone, and Request::resumed with a prompt of `prompt` tokens.
Status check_parameters(const Request& request, int64_t vocab);
Status check_resumed(const Request& request, int64_t prompt);

class Engine {
public:
    // Creates an engine. Without a tokenizer, answers consist of tokens only, and stop strings are an error. Errors:
    // too little memory for the cache or for one sequence of 64 tokens; drafts by prediction layers that the model has
    // not loaded.
    static Result<std::unique_ptr<Engine>> create(std::shared_ptr<const LanguageModel> model,
                                                  std::optional<Tokenizer> tokenizer, const EngineOptions& options);
    ~Engine();
    Engine(const Engine&) = delete;
    Engine& operator=(const Engine&) = delete;

    Admission submit(Request request, AnswerSink sink);
    // The same for many prompts with equal parameters: share() checks and converts the parameters once. Error:
    // everything that submit() rejects as invalid.
    Result<SharedRequestPtr> share(Request parameters) const;
    Admission submit(SharedRequestPtr shared, std::vector<int32_t> prompt, uint64_t sequence, AnswerSink sink);
    // Cancels a request within one step. Unknown and finished handles are ignored. The sink receives
    // FinishReason::cancelled.
    void cancel(uint64_t handle);
    EngineStats stats() const;
    const EngineOptions& limits() const;  // options with defaults filled in
    int64_t capacity() const;             // most tokens that the cache holds
    const LanguageModel& model() const;

    // Runs one step. Returns false if nothing is left to do.
    bool step();
    // Starts the engine's own thread, which calls step() and sleeps while there is nothing to do.
    void start();
    // Stops between two steps and returns when no step is in flight. New requests are accepted and wait. Until
    // resume(), the caller may change the model's weights, after which it must call forget_prefixes(). Callers of
    // pause(), resume(), forget_prefixes() and forget_pages() take turns.
    void pause(Unfinished unfinished);
    void resume();
    bool paused() const;
    // Only while paused: removes all prefixes from the cache, so that pages of other weights are not used.
    void forget_prefixes();
    // Only while paused, without unfinished answers: removes the prefixes and gives the memory of keys, values and
    // states back to the system until it is written again.
    void forget_pages();
    // Accepts no more requests; returns when all are finished. A pause ends. Those that are unfinished at `deadline`
    // are cancelled. Without its own thread, the engine steps inside this call.
    void drain(EngineClock::time_point deadline);

private:
    struct State;
    explicit Engine(std::unique_ptr<State> state);
    std::unique_ptr<State> state_;
};

}  // namespace nibble
