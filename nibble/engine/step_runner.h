// Runs a planned step: the batch goes through the model, and every choice's rows through its answer; drafts are
// verified row by row. Afterwards the sequences hold exactly the tokens of the answers.
#pragma once

#include "engine/drafter.h"
#include "model/language_model.h"

#include <vector>

namespace nibble {

// A step in flight.
struct Flight {
    struct Part {
        Choice* choice = nullptr;
        int64_t epoch = 0;  // epoch of the choice at launch; if the choice now has another, the part is ignored
        bool wants_row = false;
        int64_t before = 0;     // answer tokens before the step
        bool deferred = false;  // choose_deferred() chooses its token
        bool valid() const { return epoch == choice->epoch && !choice->answer.finished(); }
    };
    std::vector<Part> parts;
    int64_t wanted = 0;
    int64_t rows = 0;
    int64_t prompt_rows = 0;  // prompt rows among them
    EngineClock::time_point start;
};

class StepRunner {
public:
    StepRunner(const LanguageModel& model, Drafter& drafter, EngineStats& stats)
        : model_(model), drafter_(drafter), stats_(stats) {}

    // Runs a step. Error: the whole step failed; its sequences are unusable.
    Status run(std::span<Choice* const> step);

    // Runs a step in two parts, for models that overlap(). launches() returns whether this is possible: it is not for
    // drafts, drafters that follow steps, and scores of prompts. Until collect(), the choices have a pending token. A
    // row whose token was already carried into the next launch may be left to the host (Choice::on_host); the caller
    // must then compute the choice again.
    bool launches(std::span<Choice* const> step) const;
    Status launch(std::span<Choice* const> step, Flight& flight);
    // Sends masks and penalties to the device. Requires that the flight is the only one and all earlier tokens are
    // known.
    Status choose_deferred(const Flight& flight);
    // Computes masks and penalties of rows that the host will choose.
    void prepare(const Flight& flight) const;
    Status collect(const Flight& flight, bool carried_on);

private:
    // Wanted rows [first, first + rows) of a step, which the device left to the host.
    struct HostRows {
        Choice* choice = nullptr;
        int64_t first = 0, rows = 1;
    };
    Status choose_on_host(std::span<const HostRows> list);
    Status choose_deferred(std::span<const HostRows> list);
    Status run_logits(std::span<Choice* const> step);  // logits are copied to the host
    Status run_chosen(std::span<Choice* const> step);  // tokens are chosen on the device
    // Continues when the tokens of `step`, whose rows are `batch`, are known.
    Status go_on(const Batch& batch, std::span<Choice* const> step);
    Status clean_up(Choice& choice) const;

    const LanguageModel& model_;
    Drafter& drafter_;
    EngineStats& stats_;
    std::vector<float> logits_;
};

}  // namespace nibble
