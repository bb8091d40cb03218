#include "checkpoint/fnmatch.h"

#include <algorithm>

namespace nibble {
namespace {

// Decodes UTF-8; bytes that are not UTF-8 are kept as single characters.
std::u32string decode(std::string_view text) {
    std::u32string out;
    for (size_t i = 0; i < text.size();) {
        const auto byte = [&](size_t k) { return static_cast<unsigned char>(text[k]); };
        const unsigned char first = byte(i);
        const int more = first >= 0xF0 && first < 0xF8   ? 3
                         : first >= 0xE0 && first < 0xF0 ? 2
                         : first >= 0xC0 && first < 0xE0 ? 1
                                                         : 0;
        char32_t value = more == 3 ? first & 7u : more == 2 ? first & 15u : more == 1 ? first & 31u : first;
        bool valid = i + more < text.size();
        for (int k = 1; valid && k <= more; ++k) {
            valid = (byte(i + k) & 0xC0) == 0x80;
            value = value << 6 | (byte(i + k) & 0x3Fu);
        }
        out.push_back(valid ? value : first);
        i += valid ? more + 1 : 1;
    }
    return out;
}

}  // namespace

NamePattern::NamePattern(std::string_view text) {
    const std::u32string p = decode(text);
    for (size_t i = 0; i < p.size(); ++i) {
        Item item{Item::Kind::literal};
        item.literal = p[i];
        if (p[i] == U'*') {
            if (!items_.empty() && items_.back().kind == Item::Kind::star) continue;
            item.kind = Item::Kind::star;
        } else if (p[i] == U'?') {
            item.kind = Item::Kind::any;
        } else if (p[i] == U'[') {
            // A ']' directly after the '[' or '[!' belongs to the set.
            size_t begin = i + 1;
            const bool negated = begin < p.size() && p[begin] == U'!';
            if (negated) ++begin;
            const size_t end = p.find(U']', begin < p.size() && p[begin] == U']' ? begin + 1 : begin);
            if (end != std::u32string::npos) {
                item.kind = Item::Kind::set;
                item.negated = negated;
                // A '-' makes a range as in Python: unless it is first, last, or directly after the end of a range. A
                // range whose ends are in the wrong order is empty.
                for (size_t k = begin; k < end; ++k) {
                    if (k + 2 < end && p[k + 1] == U'-') {
                        if (p[k] <= p[k + 2]) item.set.push_back({p[k], p[k + 2]});
                        k += 2;
                    } else {
                        item.set.push_back({p[k], p[k]});
                    }
                }
                i = end;
            }
        }
        items_.push_back(std::move(item));
    }
}

bool NamePattern::accepts(const Item& item, char32_t c) {
    switch (item.kind) {
        case Item::Kind::star:
            return false;
        case Item::Kind::any:
            return true;
        case Item::Kind::literal:
            return item.literal == c;
        case Item::Kind::set:
            break;
    }
    for (const Range& r : item.set)
        if (r.low <= c && c <= r.high) return !item.negated;
    return item.negated;
}

bool NamePattern::matches(std::string_view name) const {
    // Almost all names are ASCII, and a recipe is matched against hundreds of thousands of them.
    const bool ascii =
        std::all_of(name.begin(), name.end(), [](char c) { return static_cast<unsigned char>(c) < 0x80; });
    return ascii ? matches_characters(name) : matches_characters(decode(name));
}

template <class Text>
bool NamePattern::matches_characters(const Text& name) const {
    // Greedy matching with one point to return to: after a mismatch, the latest star matches one more character.
    size_t at = 0, item = 0;
    size_t star = items_.size(), star_at = 0;
    while (at < name.size()) {
        if (item < items_.size() && items_[item].kind == Item::Kind::star) {
            star = item++;
            star_at = at;
        } else if (item < items_.size() && accepts(items_[item], static_cast<char32_t>(name[at]))) {
            ++item;
            ++at;
        } else if (star < items_.size()) {
            item = star + 1;
            at = ++star_at;
        } else {
            return false;
        }
    }
    while (item < items_.size() && items_[item].kind == Item::Kind::star) ++item;
    return item == items_.size();
}

}  // namespace nibble
