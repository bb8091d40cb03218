// Finds the first of several strings in a text that arrives in pieces, and holds back text that may become part of one.
// The work per byte is bounded by the number of strings (Knuth, Morris and Pratt).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace nibble {

// The strings, prepared once and shared by all answers of a request. Empty strings are dropped.
class StopPatterns {
public:
    explicit StopPatterns(const std::vector<std::string>& strings);

    struct One {
        std::string text;
        std::vector<uint32_t>
            borders;  // [i]: length of the longest proper prefix that is also a suffix of text[0 .. i]
        // Returns the number of bytes of `text` that the input ends with after one more byte; before it was `matched`.
        size_t next(size_t matched, char byte) const {
            while (matched > 0 && text[matched] != byte) matched = borders[matched - 1];
            return matched + (text[matched] == byte);
        }
    };
    const std::vector<One>& list() const { return list_; }

private:
    std::vector<One> list_;
};

class StopStrings {
public:
    explicit StopStrings(std::shared_ptr<const StopPatterns> patterns)
        : patterns_(std::move(patterns)), matched_bytes_(patterns_->list().size()) {}
    explicit StopStrings(const std::vector<std::string>& strings)
        : StopStrings(std::make_shared<const StopPatterns>(strings)) {}

    // Adds text. Returns text that cannot be part of a stop string; empty after one was found. The string that is
    // complete first is found, of several the longest, independently of how the text was divided.
    std::string push(std::string_view text);
    // Returns the held-back text, which did not become a stop string.
    std::string finish();
    bool found() const { return found_; }
    const std::string& matched() const { return matched_; }  // the string that was found, else empty

private:
    std::shared_ptr<const StopPatterns> patterns_;
    std::vector<size_t> matched_bytes_;  // matched bytes of every pattern at the end of held_
    std::string held_, matched_;
    bool found_ = false;
};

}  // namespace nibble
