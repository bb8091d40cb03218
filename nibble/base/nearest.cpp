#include "base/nearest.h"

#include <algorithm>
#include <cctype>
#include <vector>

namespace nibble {
namespace {

constexpr size_t longest_near_word = 64;

char lower_letter(char c) { return static_cast<char>(std::tolower(static_cast<unsigned char>(c))); }

}  // namespace

size_t edit_distance(std::string_view a, std::string_view b) {
    // Three rows of the table: two letters before, one letter before, current letter.
    std::vector<size_t> before(b.size() + 1), last(b.size() + 1), row(b.size() + 1);
    for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
    for (size_t i = 1; i <= a.size(); ++i) {
        std::swap(before, last);
        std::swap(last, row);
        row[0] = i;
        for (size_t j = 1; j <= b.size(); ++j) {
            const char x = lower_letter(a[i - 1]), y = lower_letter(b[j - 1]);
            row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (x != y)});
            if (i > 1 && j > 1 && x == lower_letter(b[j - 2]) && y == lower_letter(a[i - 2]))
                row[j] = std::min(row[j], before[j - 2] + 1);
        }
    }
    return row[b.size()];
}

std::string nearest_word(std::string_view word, std::span<const std::string> known) {
    if (word.empty() || word.size() > longest_near_word) return {};
    // An abbreviation: the shortest word that begins so.
    constexpr size_t least_abbreviation = 4;
    std::string best;
    for (const std::string& candidate : known)
        if (word.size() >= least_abbreviation && candidate.starts_with(word) &&
            (best.empty() || candidate.size() < best.size()))
            best = candidate;
    if (!best.empty()) return best;
    size_t least = std::max<size_t>(2, word.size() / 3) + 1;
    for (const std::string& candidate : known) {
        // A candidate that differs in every letter, or in all but one ("-n", "-h"), is not a misspelling.
        const size_t distance = edit_distance(word, candidate);
        if (distance >= least || distance + 1 >= candidate.size()) continue;
        least = distance;
        best = candidate;
    }
    return best;
}

std::string did_you_mean(std::string_view word, std::span<const std::string> known) {
    const std::string near = nearest_word(word, known);
    return near.empty() ? std::string() : "; did you mean '" + near + "'?";
}

}  // namespace nibble
