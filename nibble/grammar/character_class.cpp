#include "grammar/character_class.h"

#include <utf8proc.h>

#include <map>
#include <string>

namespace nibble {
namespace {

// Sets by general category: "Lu", "Nd" ...
const std::map<std::string, CodeSet, std::less<>>& category_sets() {
    static const auto sets = [] {
        std::map<std::string, CodeSet, std::less<>> out;
        std::string_view before = utf8proc_category_string(0);
        char32_t begin = 0;
        for (char32_t code = 1; code <= 0x110000; ++code) {
            const std::string_view now =
                code == 0x110000 ? "" : utf8proc_category_string(static_cast<utf8proc_int32_t>(code));
            if (now == before) continue;
            out.try_emplace(std::string(before)).first->second.add(begin, code - 1);
            begin = code;
            before = now;
        }
        return out;
    }();
    return sets;
}

void add_all(CodeSet& to, const CodeSet& from) {
    for (const auto& [first, last] : from.ranges()) to.add(first, last);
}

// Returns the union of all categories whose names start with one of `names`.
CodeSet categories(std::initializer_list<std::string_view> names) {
    CodeSet out;
    for (const auto& [name, set] : category_sets())
        for (const std::string_view begin : names)
            if (name.starts_with(begin)) add_all(out, set);
    return out;
}

const CharacterClass& digits() {
    static const CharacterClass out{{{'0', '9'}}, categories({"Nd"})};
    return out;
}

const CharacterClass& word_characters() {
    static const CharacterClass out{{{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}},
                                    categories({"L", "M", "N", "Pc"})};
    return out;
}

const CharacterClass& spaces() {
    static const CharacterClass out{{{'\t', '\r'}, {' ', ' '}},
                                    {{0x09, 0x0D},
                                     {0x1C, 0x20},
                                     {0x85, 0x85},
                                     {0xA0, 0xA0},
                                     {0x1680, 0x1680},
                                     {0x180E, 0x180E},
                                     {0x2000, 0x200B},
                                     {0x2028, 0x2029},
                                     {0x202F, 0x202F},
                                     {0x205F, 0x205F},
                                     {0x3000, 0x3000},
                                     {0xFEFF, 0xFEFF}}};
    return out;
}

}  // namespace

void CharacterClass::add(const CharacterClass& other) {
    add_all(narrow, other.narrow);
    add_all(wide, other.wide);
}

void CharacterClass::add(char32_t first, char32_t last) {
    narrow.add(first, last);
    wide.add(first, last);
}

std::optional<CharacterClass> class_of_escape(char32_t letter) {
    switch (letter) {
        case 'd':
            return digits();
        case 'D':
            return digits().inverse();
        case 'w':
            return word_characters();
        case 'W':
            return word_characters().inverse();
        case 's':
            return spaces();
        case 'S':
            return spaces().inverse();
        default:
            return std::nullopt;
    }
}

CharacterClass class_of_dot() {
    static const CharacterClass line_ends{{{'\n', '\n'}}, {{'\n', '\r'}, {0x85, 0x85}, {0x2028, 0x2029}}};
    return line_ends.inverse();
}

std::optional<CharacterClass> class_of_category(std::string_view name) {
    if (name.empty() || name.size() > 2) return std::nullopt;
    const CodeSet set = categories({name}).both(CodeSet::all());
    if (set.empty()) return std::nullopt;
    return CharacterClass{set, set};
}

}  // namespace nibble
