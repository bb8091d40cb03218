// Runs a planned step: a batch through the model, then every choice's rows through its answer, drafts checked row by
// row. Afterwards the sequences hold what the answers say and no more.
#pragma once

#include "model/language_model.h"
#include "serve/choice.h"
#include "serve/engine.h"

#include <vector>

namespace nibble {

class StepRunner {
public:
    StepRunner(const LanguageModel& model, EngineStats& stats) : model_(model), stats_(stats) {}

    // Error: the step as a whole failed; its sequences are unusable.
    Status run(std::span<Choice* const> step);

private:
    Status run_logits(std::span<Choice* const> step);  // rows of logits come to the host
    Status run_chosen(std::span<Choice* const> step);  // tokens are chosen where the logits lie
    Status clean_up(Choice& choice) const;

    const LanguageModel& model_;
    EngineStats& stats_;
    std::vector<float> logits_;
};

}  // namespace nibble
