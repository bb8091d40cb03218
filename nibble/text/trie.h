// Byte strings with values, matched at a position of a text.
#pragma once

#include "text/hash_table.h"

#include <array>
#include <string_view>
#include <vector>

namespace nibble {

class Trie {
public:
    static constexpr uint32_t none = ~uint32_t{0};

    // Inserts a text. The first of two equal texts counts. Precondition: `text` is not empty.
    void insert(std::string_view text, uint32_t value) {
        uint32_t node = 0;
        for (const char c : text) node = child_or_new(node, static_cast<uint8_t>(c));
        if (values_[node] == none) values_[node] = value;
        starts_[static_cast<uint8_t>(text[0])] = true;
    }
    bool empty() const { return values_.size() == 1; }
    bool starts(char c) const { return starts_[static_cast<uint8_t>(c)]; }

    // Cost of matches() in steps (text/meter.h) for `looked` bytes. Tokens in use are short; nodes beyond 32 bytes
    // count triple, because they are far apart in memory.
    static int64_t steps(size_t looked) {
        return 1 + static_cast<int64_t>(looked + (looked > 32 ? 2 * (looked - 32) : 0));
    }

    // Calls visit(length, value) for every string that is a prefix of `text`, shortest first. Returns the number of
    // bytes read.
    template <class Visit>
    size_t matches(std::string_view text, Visit&& visit) const {
        uint32_t node = 0;
        for (size_t i = 0; i < text.size(); ++i) {
            const uint32_t* next = edges_.find(uint64_t{node} << 8 | static_cast<uint8_t>(text[i]));
            if (!next) return i;
            node = *next;
            if (values_[node] != none) visit(i + 1, values_[node]);
        }
        return text.size();
    }

private:
    uint32_t child_or_new(uint32_t node, uint8_t byte) {
        const uint64_t key = uint64_t{node} << 8 | byte;
        if (const uint32_t* next = edges_.find(key)) return *next;
        const auto fresh = static_cast<uint32_t>(values_.size());
        edges_.insert(key, fresh);
        values_.push_back(none);
        return fresh;
    }

    HashTable<uint32_t> edges_;
    std::vector<uint32_t> values_{none};
    std::array<bool, 256> starts_{};
};

}  // namespace nibble
