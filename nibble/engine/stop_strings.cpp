#include "engine/stop_strings.h"

#include <algorithm>
#include <utility>

namespace nibble {

StopPatterns::StopPatterns(const std::vector<std::string>& strings) {
    for (const std::string& text : strings) {
        if (text.empty()) continue;
        One one{text, std::vector<uint32_t>(text.size())};
        for (size_t i = 1; i < text.size(); ++i)
            one.borders[i] = static_cast<uint32_t>(one.next(one.borders[i - 1], text[i]));
        list_.push_back(std::move(one));
    }
}

std::string StopStrings::push(std::string_view text) {
    if (found_) return {};
    const auto& patterns = patterns_->list();
    if (patterns.empty()) return std::string(text);
    size_t hold = 0;  // length of the longest suffix of held_ that begins a stop string
    for (const char byte : text) {
        held_ += byte;
        size_t complete = hold = 0;
        for (size_t i = 0; i < patterns.size(); ++i) {
            const size_t now = matched_bytes_[i] = patterns[i].next(matched_bytes_[i], byte);
            hold = std::max(hold, now);
            if (now == patterns[i].text.size()) complete = std::max(complete, now);
        }
        if (complete == 0) continue;
        found_ = true;
        matched_ = held_.substr(held_.size() - complete);
        held_.resize(held_.size() - complete);
        return std::exchange(held_, {});
    }
    if (text.empty())
        for (const size_t bytes : matched_bytes_) hold = std::max(hold, bytes);
    std::string safe = held_.substr(0, held_.size() - hold);
    held_.erase(0, safe.size());
    return safe;
}

std::string StopStrings::finish() { return std::exchange(held_, {}); }

}  // namespace nibble
