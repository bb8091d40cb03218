#include "eval/answers.h"

#include <algorithm>

namespace nibble {
namespace {

constexpr std::string_view mark = "#### ";
constexpr std::string_view digits = "0123456789";

}  // namespace

std::optional<std::string> gsm8k_strict(std::string_view text) {
    for (size_t at = text.find(mark); at != std::string_view::npos; at = text.find(mark, at + 1)) {
        const size_t begin = at + mark.size();
        const size_t first = begin + (text.substr(begin).starts_with('-') ? 1 : 0);
        const size_t end = std::min(text.find_first_not_of("0123456789.,", first), text.size());
        if (end > first) return std::string(text.substr(begin, end - begin));
    }
    return std::nullopt;
}

// Applies (-?[$0-9.,]{2,})|(-?[0-9]+) from left to right and returns the last match.
std::optional<std::string> gsm8k_flexible(std::string_view text) {
    std::optional<std::string> last;
    for (size_t at = 0; at < text.size();) {
        const size_t first = at + (text[at] == '-' ? 1 : 0);
        size_t end = std::min(text.find_first_not_of("$0123456789.,", first), text.size());
        if (end < first + 2) end = std::min(text.find_first_not_of(digits, first), text.size());
        if (end > first) {
            last = std::string(text.substr(at, end - at));
            at = end;
        } else {
            ++at;
        }
    }
    return last;
}

std::string gsm8k_normalized(std::string_view text) {
    if (const size_t at = text.rfind(mark); at != std::string_view::npos) text.remove_prefix(at + mark.size());
    std::string out;
    for (const char c : text)
        if (c != ',' && c != '$') out += c >= 'A' && c <= 'Z' ? char(c - 'A' + 'a') : c;
    // Python's $ also matches before a final newline.
    if (out.ends_with('.'))
        out.pop_back();
    else if (out.ends_with(".\n"))
        out.erase(out.size() - 2, 1);
    return out;
}

std::string_view function_body(std::string_view completion) {
    size_t end = completion.size();
    for (const std::string_view stop : {"\nclass", "\ndef", "\n#", "\nif", "\nprint"})
        end = std::min(end, completion.find(stop));
    return completion.substr(0, end);
}

}  // namespace nibble
