#include "serve/stop_strings.h"

#include <algorithm>
#include <utility>

namespace nibble {

StopStrings::StopStrings(std::vector<std::string> strings) : strings_(std::move(strings)) {
    std::erase_if(strings_, [](const std::string& s) { return s.empty(); });
}

std::string StopStrings::push(std::string_view text) {
    if (found_) return {};
    held_ += text;
    std::pair<size_t, size_t> first{std::string::npos, 0};  // end and begin
    for (const std::string& s : strings_)
        if (const size_t at = held_.find(s); at != std::string::npos) first = std::min(first, {at + s.size(), at});
    if (first.first != std::string::npos) {
        found_ = true;
        matched_ = held_.substr(first.second, first.first - first.second);
        held_.resize(first.second);
        return std::exchange(held_, {});
    }
    size_t hold = 0;  // the longest end of held_ that begins a stop string
    for (const std::string& s : strings_)
        for (size_t n = std::min(s.size() - 1, held_.size()); n > hold; --n)
            if (std::string_view(held_).ends_with(std::string_view(s).substr(0, n))) hold = n;
    std::string safe = held_.substr(0, held_.size() - hold);
    held_.erase(0, safe.size());
    return safe;
}

std::string StopStrings::finish() { return std::exchange(held_, {}); }

}  // namespace nibble
