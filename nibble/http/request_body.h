// The body of a request as Beast's parser fills it. The string grows with the received bytes, not with the announced
// length, and counts against the budget of all requests.
#pragma once

#include "http/body_budget.h"
#include "http/body_reader.h"

#include <memory>
#include <string>
#include <string_view>

namespace nibble {

struct CountedText {
    std::string text;
    std::shared_ptr<BodyBudgets::Share> share;

    bool take(std::string_view piece) {
        if (!share->take(piece.size())) return false;  // the budget is exhausted
        text += piece;
        return true;
    }
};
using CountedBody = BodyOf<CountedText>;

}  // namespace nibble
