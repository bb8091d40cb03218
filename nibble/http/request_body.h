// The body of a request as Beast's parser fills it: a string that grows with the bytes that came, not with the length
// that the peer announced, and that is counted against what all requests together may hold.
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
        if (!share->take(piece.size())) return false;  // too much of all requests together
        text += piece;
        return true;
    }
};
using CountedBody = BodyOf<CountedText>;

}  // namespace nibble
