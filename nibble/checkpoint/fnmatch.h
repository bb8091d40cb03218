// Matches names as Python's fnmatch.fnmatchcase does: `*` also matches dots, `?` one character, [abc] [a-z] [!abc] are
// sets, an unclosed `[` matches itself.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace nibble {

class NamePattern {
public:
    explicit NamePattern(std::string_view text);
    bool matches(std::string_view name) const;

private:
    struct Range {
        char32_t low, high;
    };
    struct Item {
        enum class Kind : uint8_t { star, any, literal, set } kind;
        bool negated = false;
        char32_t literal = 0;
        std::vector<Range> set;
    };
    template <class Text>
    bool matches_characters(const Text& name) const;
    static bool accepts(const Item& item, char32_t c);

    std::vector<Item> items_;
};

}  // namespace nibble
