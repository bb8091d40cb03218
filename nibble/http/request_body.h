// The body of a request as Beast's parser fills it: a string that grows with the bytes that came, not with the length
// that the peer announced, and that is counted against what all requests together may hold.
#pragma once

#include "http/body_reader.h"

#include <atomic>
#include <memory>
#include <string>
#include <string_view>

namespace nibble {

using BodyBudget = std::shared_ptr<std::atomic<int64_t>>;  // bytes left

// A share of the budget; gives it back when it ends.
class BodyShare {
public:
    explicit BodyShare(BodyBudget budget) : budget_(std::move(budget)) {}
    BodyShare(const BodyShare&) = delete;
    BodyShare& operator=(const BodyShare&) = delete;
    ~BodyShare() {
        if (budget_) *budget_ += taken_;
    }
    bool take(size_t bytes) {
        const auto n = static_cast<int64_t>(bytes);
        if ((*budget_ -= n) < 0) {
            *budget_ += n;
            return false;
        }
        taken_ += n;
        return true;
    }

private:
    BodyBudget budget_;
    int64_t taken_ = 0;
};

struct CountedText {
    std::string text;
    std::shared_ptr<BodyShare> share;

    bool take(std::string_view piece) {
        if (!share->take(piece.size())) return false;  // too much of all requests together
        text += piece;
        return true;
    }
};
using CountedBody = BodyOf<CountedText>;

}  // namespace nibble
