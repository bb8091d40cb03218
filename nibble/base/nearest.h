// "did you mean": which of several known words was meant by a misspelled one.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace nibble {

// The fewest insertions, deletions, changes of one character and swaps of two neighbours that turn one word into the
// other (optimal string alignment). Letters are compared without case. Bytes, not characters: the words are names.
size_t edit_distance(std::string_view a, std::string_view b);

// The known word nearest to `word`; empty when none is near: at most a third of the letters may differ, and two always.
// Words longer than 64 bytes are near to nothing.
std::string nearest_word(std::string_view word, std::span<const std::string> known);

// "; did you mean 'quantize'?", or nothing.
std::string did_you_mean(std::string_view word, std::span<const std::string> known);

}  // namespace nibble
