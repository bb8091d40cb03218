// Drafts of the next tokens (speculative decoding). A step verifies them row by row against the model's own tokens.
// Rows do not depend on each other, so a draft changes the time but no bit of an answer.
//
// The engine calls draft() while it plans a step, and follow() when the step's tokens are known.
#pragma once

#include "engine/choice.h"
#include "engine/engine.h"
#include "model/language_model.h"

#include <memory>
#include <span>
#include <vector>

namespace nibble {

// Rows [row, row + rows) of the model's last batch hold positions [position, position + rows) of a choice's sequence,
// and were accepted.
struct FollowedRows {
    Choice* choice = nullptr;
    int64_t row = 0, position = 0, rows = 0;
};

class Drafter {
public:
    virtual ~Drafter() = default;
    // Returns up to `most` tokens that may follow the text; often none.
    virtual std::vector<int32_t> draft(Choice& choice, int64_t most) = 0;
    // Reports how many tokens of the last draft were accepted.
    virtual void learn(Choice&, int64_t /*drafted*/, int64_t /*right*/) {}
    // Returns true if follow() must be called after every step. The step's tokens must then be known before the next
    // step.
    virtual bool follows() const { return false; }
    // Called after a step; the sequences hold exactly the tokens of their answers. Errors only mean that there is no
    // draft.
    virtual void follow(std::span<const FollowedRows>) {}
};

// `options` are settled. Options, model and stats must outlive the drafter.
std::unique_ptr<Drafter> make_drafter(const LanguageModel& model, const EngineOptions& options, EngineStats& stats);
// Returns the most draft tokens for `choice`.
int64_t most_drafted(const Choice& choice, const EngineOptions& options);

}  // namespace nibble
