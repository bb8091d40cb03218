// "did you mean": finds the known word that a misspelled word most likely means.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace nibble {

// Returns the minimum number of insertions, deletions, changes of one character and swaps of two neighbours between two
// words (optimal string alignment). Ignores case. Compares bytes, because the words are names.
size_t edit_distance(std::string_view a, std::string_view b);

// Returns the known word that `word` abbreviates (with four letters or more), else the one nearest to it, or "" if none
// is near: at most a third of the letters, or two, may differ. Words longer than 64 bytes have no near word.
std::string nearest_word(std::string_view word, std::span<const std::string> known);

// Returns "; did you mean 'quantize'?", or "".
std::string did_you_mean(std::string_view word, std::span<const std::string> known);

}  // namespace nibble
