// A table from 64-bit keys to small values, built once and then only read. Open addressing, at most half full.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace nibble {

template <class Value>
class HashTable {
public:
    // Precondition: key is not ~0.
    const Value* find(uint64_t key) const {
        if (slots_.empty()) return nullptr;
        for (size_t i = slot(key);; i = (i + 1) & (slots_.size() - 1)) {
            if (slots_[i].key == key) return &slots_[i].value;
            if (slots_[i].key == empty) return nullptr;
        }
    }
    // Inserts a key; returns false without a change if the key exists.
    bool insert(uint64_t key, Value value) {
        if (find(key)) return false;
        if (2 * (size_ + 1) > slots_.size()) grow();
        place(key, value);
        ++size_;
        return true;
    }

private:
    static constexpr uint64_t empty = ~uint64_t{0};
    struct Slot {
        uint64_t key = empty;
        Value value{};
    };
    size_t slot(uint64_t key) const {
        uint64_t h = key * 0x9E3779B97F4A7C15u;
        h ^= h >> 32;
        return (h * 0xD6E8FEB86659FD93u >> 20) & (slots_.size() - 1);
    }
    void place(uint64_t key, Value value) {
        size_t i = slot(key);
        while (slots_[i].key != empty) i = (i + 1) & (slots_.size() - 1);
        slots_[i] = {key, value};
    }
    void grow() {
        std::vector<Slot> old(std::max<size_t>(16, 2 * slots_.size()));
        old.swap(slots_);
        for (const Slot& s : old)
            if (s.key != empty) place(s.key, s.value);
    }

    std::vector<Slot> slots_;
    size_t size_ = 0;
};

}  // namespace nibble
