// Extracts the answer from a text and compares it with the expected one. It follows the rules of the math-verify
// package for arithmetic and school algebra: numbers, expressions, tuples, sets, intervals, letters of a choice.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace nibble {

// Returns the first of these that the text has: the content of the last \boxed{...} (of several boxes with only
// separators between them: all); the text after the last "####"; the text from the last "answer is" or "Answer:" to the
// end of the line. Returns nothing if the text has none of them.
std::optional<std::string> marked_answer(std::string_view text);
// Returns marked_answer(), or the last formula of the text ($...$, \(...\), \[...\]), or its last number, or nothing.
std::optional<std::string> math_answer(std::string_view text);

// Parses both sides and compares their values (rl/math_expression.h).
// - Lists in round or square brackets are ordered. Lists in braces or without brackets are not, nor are the parts of a
// union. "and", "or" and ";" separate like commas. A value with \pm is two values.
// - "x = 5" equals "5" and "5 = x", but not "y = 5"; so does "(x, y) = ...". An equation without a name on one side
// does not.
// - "x > 3" equals "3 < x". A unit in \text{...} after a value is ignored.
// - Text that is not an expression must be equal, ignoring case, spaces and a final dot.
// - A side longer than 4,096 bytes equals nothing.
bool same_math_answer(std::string_view expected, std::string_view given);

// Returns 1 if math_answer() of the text equals `expected`, else 0.
double math_reward(std::string_view text, std::string_view expected);

}  // namespace nibble
