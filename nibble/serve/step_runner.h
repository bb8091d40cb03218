// Runs a planned step: a batch through the model, then every choice's rows through its answer, drafts checked row by
// row. Afterwards the sequences hold what the answers say and no more.
#pragma once

#include "model/language_model.h"
#include "serve/drafter.h"

#include <vector>

namespace nibble {

// A step under way.
struct Flight {
    struct Part {
        Choice* choice = nullptr;
        int64_t epoch = 0;  // of the choice: another one now, and the part is void
        bool wants_row = false;
        int64_t before = 0;     // tokens that the answer had
        bool deferred = false;  // its row waits for choose_deferred()
        bool valid() const { return epoch == choice->epoch && !choice->answer.finished(); }
    };
    std::vector<Part> parts;
    int64_t wanted = 0;
    int64_t rows = 0;
    int64_t prompt_rows = 0;  // of them: of prompts
    EngineClock::time_point start;
};

class StepRunner {
public:
    StepRunner(const LanguageModel& model, Drafter& drafter, EngineStats& stats)
        : model_(model), drafter_(drafter), stats_(stats) {}

    // Error: the step as a whole failed; its sequences are unusable.
    Status run(std::span<Choice* const> step);

    // The same in two parts, for models that overlap() and steps without drafts, drafters that follow them and scores
    // of prompts: until collect() the choices have a pending token. Those whose token another launch already carries on
    // may be left to the host (Choice::on_host): they are for the caller to compute again.
    bool launches(std::span<Choice* const> step) const;
    Status launch(std::span<Choice* const> step, Flight& flight);
    // While it is the only one under way, and all tokens before it are known: masks and penalties go to the device.
    Status choose_deferred(const Flight& flight);
    // The same for what the host will choose.
    void prepare(const Flight& flight) const;
    Status collect(const Flight& flight, bool carried_on);

private:
    // Wanted rows [first, first + rows) of a step whose tokens a device has chosen, but for these.
    struct HostRows {
        Choice* choice = nullptr;
        int64_t first = 0, rows = 1;
    };
    Status choose_on_host(std::span<const HostRows> list);
    Status choose_deferred(std::span<const HostRows> list);
    Status run_logits(std::span<Choice* const> step);  // rows of logits come to the host
    Status run_chosen(std::span<Choice* const> step);  // tokens are chosen where the logits lie
    // The tokens of `step`, whose rows are `batch`, are known.
    Status go_on(const Batch& batch, std::span<Choice* const> step);
    Status clean_up(Choice& choice) const;

    const LanguageModel& model_;
    Drafter& drafter_;
    EngineStats& stats_;
    std::vector<float> logits_;
};

}  // namespace nibble
