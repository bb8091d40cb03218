// Finding the answer in what a model wrote. GSM8K as lm-evaluation-harness 0.4 (gsm8k.yaml) filters and compares it.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace nibble {

// The number after the first "#### ": digits, dots and commas, perhaps a minus.
std::optional<std::string> gsm8k_strict(std::string_view text);
// The last number of the text: two or more of "$0-9.,", perhaps a minus before them, or a run of digits.
std::optional<std::string> gsm8k_flexible(std::string_view text);
// What is compared: without commas, dollar signs, everything up to the last "#### " and a dot at the end; ASCII letters
// small.
std::string gsm8k_normalized(std::string_view text);

// Text cut before the first of "\nclass", "\ndef", "\n#", "\nif", "\nprint": the body of a function (Chen et al. 2021,
// Evaluating large language models trained on code).
std::string_view function_body(std::string_view completion);

}  // namespace nibble
