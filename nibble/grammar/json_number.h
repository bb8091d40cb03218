// The texts of JSON numbers within bounds.
#pragma once

#include "base/json.h"
#include "grammar/dfa.h"

#include <optional>

namespace nibble {

// In units of 1e-15.
using FixedNumber = __int128;

struct NumberBounds {
    bool whole = false;  // integers only
    std::optional<FixedNumber> least, most;
    bool least_open = false, most_open = false;  // the bound itself is outside
    int64_t multiple = 1;                        // with `whole`: of this number

    bool free() const { return !least && !most && multiple == 1; }
    bool empty() const { return least && most && (*least > *most || (*least == *most && (least_open || most_open))); }
    bool has(const Json& number) const;
};

// A number of a schema. Errors: beyond 1e18, more than 15 digits behind the point.
Result<FixedNumber> fixed_number(const Json& number);

// At most 18 digits in front of the point. Where there are bounds: no exponent, and so few digits behind the point that
// different texts of numbers are different doubles. Errors: bounds that this cannot satisfy, a multiple above 1,000.
Result<ExprPtr> number_texts(const NumberBounds& bounds, GrammarBudget& budget);

}  // namespace nibble
