// The answer in what a model wrote, and whether it equals the right one: the rules of the math-verify package for what
// arithmetic and school algebra need (numbers, expressions, tuples, sets, intervals, letters of a choice).
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace nibble {

// In this order: the content of the last \boxed{...} (of several with nothing but separators between them: all); what
// follows the last "####"; what follows the last "answer is" or "Answer:" up to the end of the line. Nothing where the
// text has none of them.
std::optional<std::string> marked_answer(std::string_view text);
// marked_answer(), otherwise the last formula of the text ($...$, \(...\), \[...\]), otherwise its last number.
// Nothing where the text has none of them.
std::optional<std::string> math_answer(std::string_view text);

// Both sides parsed and compared by value (rl/math_expression.h). Lists in round and square brackets keep their order,
// those in braces or in none do not, nor do the parts of a union; "and", "or" and ";" separate as commas do, and what
// has \pm in it is two values. "x = 5" equals "5" and "5 = x", not "y = 5", as does "(x, y) = ..."; an equation without
// a name on one side does not. "x > 3" equals "3 < x". A unit in \text{...} behind a value does not count. Text that is
// no expression must be the same but for case, spaces and the dot at the end. A side longer than 4,096 bytes equals
// nothing.
bool same_math_answer(std::string_view expected, std::string_view given);

// 1 where math_answer() of the text is `expected`, else 0.
double math_reward(std::string_view text, std::string_view expected);

}  // namespace nibble
