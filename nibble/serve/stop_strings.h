// Finds the first of several strings in a text that arrives in pieces, and holds back what may still become one.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace nibble {

class StopStrings {
public:
    // Empty strings are dropped.
    explicit StopStrings(std::vector<std::string> strings);

    // Text that certainly comes before every stop string; nothing once one was found. The one that is complete first
    // wins, of those the longest: it does not matter how the text was cut.
    std::string push(std::string_view text);
    // What was held back and did not become a stop string.
    std::string finish();
    bool found() const { return found_; }
    const std::string& matched() const { return matched_; }  // the one found; else empty

private:
    std::vector<std::string> strings_;
    std::string held_, matched_;
    bool found_ = false;
};

}  // namespace nibble
