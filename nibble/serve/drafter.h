// Guesses of the tokens that follow (speculative decoding). A step checks them row by row, as the model's own tokens:
// rows do not depend on their neighbours, so a guess costs or saves time and changes no bit of an answer.
//
// The engine asks between steps: guess() while it plans one, follow() when its tokens are known.
#pragma once

#include "model/language_model.h"
#include "serve/choice.h"
#include "serve/engine.h"

#include <memory>
#include <span>
#include <vector>

namespace nibble {

// Rows [row, row + rows) of the batch that the model saw last are positions [position, position + rows) of a choice's
// sequence, and were right.
struct FollowedRows {
    Choice* choice = nullptr;
    int64_t row = 0, position = 0, rows = 0;
};

class Drafter {
public:
    virtual ~Drafter() = default;
    // Up to `most` tokens that may follow the text; often none.
    virtual std::vector<int32_t> guess(Choice& choice, int64_t most) = 0;
    // How much of the last guess was right.
    virtual void learn(Choice&, int64_t /*guessed*/, int64_t /*right*/) {}
    // Whether follow() is to hear of every step, whose tokens therefore must be known before the next one.
    virtual bool follows() const { return false; }
    // A step is over; its sequences hold what their answers say. What cannot be guessed, for whatever reason, is not.
    virtual void follow(std::span<const FollowedRows>) {}
};

// `options` are settled; they, model and stats outlive the drafter.
std::unique_ptr<Drafter> make_drafter(const LanguageModel& model, const EngineOptions& options, EngineStats& stats);
// Tokens of a guess for `choice` at most.
int64_t most_drafted(const Choice& choice, const EngineOptions& options);

}  // namespace nibble
