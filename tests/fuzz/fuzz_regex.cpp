// Input: a pattern of tokenizer.json, then, after the first byte 1, a text. It must be refused with one line, or give
// matches that are not empty, in order and inside the text, with the same number of steps every time, within the limits
// of time and memory.
#include "judge.h"
#include "text/regex.h"
#include "text/unicode.h"

#include <vector>

using namespace nibble;

namespace {

struct Found {
    std::vector<std::pair<size_t, size_t>> matches;
    std::string error;
    int64_t steps = 0;

    bool operator==(const Found&) const = default;
};

Found search(const Pattern& pattern, std::string_view text) {
    Meter meter({.steps = 1'000'000, .bytes = 16 << 20});
    RegexSearch search(pattern, text, meter);
    Found found;
    for (Span match;;) {
        const auto next = search.next(match);
        if (!next.ok()) {
            require_message(next.error());
            found.error = next.error().message();
        }
        if (!next.ok() || !*next) break;
        require(match.begin < match.end && match.end <= text.size());
        require(found.matches.empty() || match.begin >= found.matches.back().second);
        found.matches.emplace_back(match.begin, match.end);
    }
    found.steps = meter.steps_used();
    return found;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    const Judge judge;
    const std::string_view all(reinterpret_cast<const char*>(data), size);
    const size_t cut = all.find('\1');
    const auto pattern = Pattern::regex(all.substr(0, cut));
    if (!pattern.ok()) {
        require_message(pattern.error());
        return 0;
    }
    const std::string text = utf8_lossy(cut == all.npos ? "" : all.substr(cut + 1));
    require(search(*pattern, text) == search(*pattern, text));
    return 0;
}
