// The texts of JSON numbers within bounds.
#pragma once

#include "base/json.h"
#include "grammar/dfa.h"

#include <optional>

namespace nibble {

// A number in units of 1e-15.
using FixedNumber = __int128;

struct NumberBounds {
    bool whole = false;  // integers only
    std::optional<FixedNumber> least, most;
    bool least_open = false, most_open = false;  // the bound itself is excluded
    int64_t multiple = 1;                        // with `whole`: the number is divisible by it

    bool free() const { return !least && !most && multiple == 1; }
    bool empty() const { return least && most && (*least > *most || (*least == *most && (least_open || most_open))); }
    bool has(const Json& number) const;
};

// Converts a number of a schema. Errors: beyond 1e18, more than 15 decimals.
Result<FixedNumber> fixed_number(const Json& number);

// Returns the texts of numbers within `bounds`, with at most 18 digits before the point. With bounds there is no
// exponent, and decimals are few enough that different texts are different doubles. Errors: bounds that cannot be met
// this way, a multiple above 1,000.
Result<ExprPtr> number_texts(const NumberBounds& bounds, GrammarBudget& budget);

}  // namespace nibble
