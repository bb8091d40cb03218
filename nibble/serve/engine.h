// The engine: requests in, answers out, one model on one device. Continuous batching over a paged cache: a step runs
// the next token of every answer and pieces of prompts behind them; answers join and leave at every step.
//
// Threads: submit(), cancel(), stats(), limits(), capacity() and drain() may be called from any thread at any time. The
// answers come from the engine's own thread after start(), else from the thread that calls step(); step() is for one
// thread at a time and for an engine that was not started. Model and thread pool belong to the engine while it steps:
// nobody else runs the model then. The destructor cancels what is unfinished (its sinks are told) and joins the thread.
//
//   NIBBLE_TRY(auto engine, Engine::create(model, tokenizer, {}));
//   auto admitted = engine->submit(std::move(request), [](const AnswerEvent& e) { ... });
//   if (!admitted.accepted()) ...
//   while (engine->step()) {}          // or engine->start(), once
#pragma once

#include "model/language_model.h"
#include "serve/histogram.h"
#include "serve/shared_request.h"
#include "text/tokenizer.h"

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace nibble {

// Who guesses the tokens that follow (serve/drafter.h).
enum class DraftSource : uint8_t {
    lookup,      // what stands behind the text's last tokens where they stood before
    prediction,  // the model's layers for multi-token prediction
};

struct EngineOptions {
    int64_t sequences = 0;   // that run together at most; 0: 64 on a CPU, 1,024 on a GPU; up to 4,096
    int64_t step_rows = 0;   // tokens of a step at most (running answers come first); 0: 512 on a CPU, 8,192 on a GPU
    int64_t mixed_rows = 0;  // of prompts, in a step that has running answers: bounds the time between two of their
                             // tokens; 0: an eighth of step_rows
    double stretch = 0;      // the same by time: a step with such rows takes so many times as long as one without them,
                             // at most, going by steps before (serve/step_pace.h); 0: no matter
    int64_t queue = 4096;    // choices that wait at most
    int64_t context = 0;     // tokens of a prompt and its answer; 0: the model's
    int64_t kv_memory = 0;   // bytes for keys, values and recurrent states; 0: what is free, see memory_share
    double memory_share = 0.9;  // of the device's free memory; of the host's, where the model runs there, a third of it
    bool prefix_cache = true;
    // Tokens that are guessed ahead at most, for requests that do not say. 0: none, but of what a request expects.
    int64_t drafts = 0;
    DraftSource drafter = DraftSource::lookup;  // prediction: for models that have loaded it (predicts())
    // For rl/mismatch_lab.h: every so many steps the last of several running answers is pushed out, as if memory were
    // short. 0: never.
    int64_t preempt_every = 0;
    // Tells the rows of every step; on the engine's thread. May be empty.
    std::function<void(int64_t rows)> on_step;
};

inline constexpr int64_t most_drafts = 15, usual_looked_up = 8;
inline constexpr int32_t most_choices = 128;

// Counters since the engine was made, and gauges of now.
struct EngineStats {
    int64_t running = 0, waiting = 0;  // choices
    int64_t deferred = 0;              // of those that wait: for a beginning of their prompt that another computes
    int64_t pages = 0, used_pages = 0,
            cached_pages = 0;  // used: by running answers; cached: idle ones of the prefix cache
    int64_t steps = 0, step_rows = 0;
    int64_t overlapped_steps = 0;  // of them: launched while the tokens of the step before were not known
    int64_t deferred_rows = 0;     // whose masks and penalties went to the device while it computed them
    int64_t host_rows = 0;         // whose logits came to the host from a device that chooses tokens
    double prompt_step_seconds = 0, answer_step_seconds = 0;  // of steps with rows of a prompt, and of all others
    int64_t prompt_tokens = 0, generated_tokens = 0;          // prompt tokens: of admitted requests, cached ones too
    int64_t cached_prompt_tokens = 0;                         // of prompt_tokens: taken from the prefix cache
    int64_t prefix_queries = 0, prefix_hits = 0;              // tokens asked for and found
    int64_t prefix_evictions = 0;                             // pages of 64 tokens, of all blocks together
    int64_t preemptions = 0;
    int64_t drafts = 0, draft_tokens = 0, accepted_tokens = 0;
    std::array<int64_t, most_drafts> accepted_at{};  // by position in the draft
    int64_t failed_drafts = 0;                       // steps behind which nothing could be guessed: out of memory, NaNs
    int64_t finished_stop = 0, finished_length = 0, finished_cancelled = 0, finished_deadline = 0, finished_error = 0;
    EngineHistograms histograms;
    BlockTimes block_times;
    double cache_share() const { return pages > 0 ? double(used_pages) / double(pages) : 0; }
};

// What became of a submit().
struct Admission {
    enum class Refusal : uint8_t {
        none,
        invalid,   // the request can never run: says why
        full,      // the queue is: after `retry_seconds`
        draining,  // the engine takes no more
    };
    Refusal refusal = Refusal::none;
    uint64_t handle = 0;  // of cancel()
    std::string message;
    double retry_seconds = 0;
    bool accepted() const { return refusal == Refusal::none; }
};

// Error: an empty prompt, an id outside [0, vocab), no room left in the context; names the position.
Status check_prompt(std::span<const int32_t> prompt, int64_t vocab, int64_t context);
// Error: a value out of range or against another, by name; what submit() would refuse as invalid.
Status check(const Request& request, int64_t vocab, int64_t context);
// The parts of it: of the parameters alone, and of Request::resumed with a prompt of so many tokens.
Status check_parameters(const Request& request, int64_t vocab);
Status check_resumed(const Request& request, int64_t prompt);

class Engine {
public:
    // Without a tokenizer, answers are tokens only, and stop strings an error. Error: no memory for the cache, or for
    // less than one sequence of 64 tokens, drafts by prediction layers that the model has not loaded.
    static Result<std::unique_ptr<Engine>> create(std::shared_ptr<const LanguageModel> model,
                                                  std::optional<Tokenizer> tokenizer, const EngineOptions& options);
    ~Engine();
    Engine(const Engine&) = delete;
    Engine& operator=(const Engine&) = delete;

    Admission submit(Request request, AnswerSink sink);
    // The same for many prompts with the same parameters: share() checks and converts them once. Error: what submit()
    // refuses as invalid.
    Result<SharedRequestPtr> share(Request parameters) const;
    Admission submit(SharedRequestPtr shared, std::vector<int32_t> prompt, uint64_t sequence, AnswerSink sink);
    // Within one step; unknown and finished handles are ignored. The sink hears FinishReason::cancelled.
    void cancel(uint64_t handle);
    EngineStats stats() const;
    const EngineOptions& limits() const;  // as they were settled
    int64_t capacity() const;             // tokens that the cache holds
    const LanguageModel& model() const;

    // Runs one step. False: nothing is left to do.
    bool step();
    // A thread of the engine's own calls step() from now on, and sleeps while nothing is left to do.
    void start();
    // No more requests are taken; returns when all are finished. What is not at `deadline` is cancelled. Without a
    // thread of its own, the engine steps inside.
    void drain(EngineClock::time_point deadline);

private:
    struct State;
    explicit Engine(std::unique_ptr<State> state);
    std::unique_ptr<State> state_;
};

}  // namespace nibble
