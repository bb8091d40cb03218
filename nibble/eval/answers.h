// Extracts answers from generated text. GSM8K is filtered and compared like in lm-evaluation-harness 0.4 (gsm8k.yaml).
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace nibble {

// Returns the number after the first "#### ": digits, dots and commas, optionally with a minus.
std::optional<std::string> gsm8k_strict(std::string_view text);
// Returns the last number of the text: two or more of "$0-9.,", optionally with a minus before them, or a run of
// digits.
std::optional<std::string> gsm8k_flexible(std::string_view text);
// Normalizes an answer for comparison: removes commas, dollar signs, everything up to the last "#### " and a final dot,
// and lowers ASCII letters.
std::string gsm8k_normalized(std::string_view text);

// Cuts a completion before the first "\nclass", "\ndef", "\n#", "\nif" or "\nprint"; what remains is the body of a
// function (Chen et al. 2021, Evaluating large language models trained on code).
std::string_view function_body(std::string_view completion);

}  // namespace nibble
