// Caches the ids of pieces. A full cache is cleared, so hostile text costs at most one insertion per piece.
#pragma once

#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace nibble {

class PieceCache {
public:
    static constexpr size_t max_piece = 64;

    // Returns the ids of `piece` or null; valid until the next insert. Precondition of find and insert: piece.size() <=
    // max_piece.
    const std::span<const uint32_t>* find(std::string_view piece) {
        const uint64_t h = hash(piece);
        for (size_t i = h & mask; slots_[i].used; i = (i + 1) & mask) {
            const Slot& s = slots_[i];
            if (s.hash != h || s.size != piece.size() ||
                std::memcmp(text_.data() + s.text, piece.data(), piece.size()) != 0)
                continue;
            found_ = {ids_.data() + s.ids, s.count};
            return &found_;
        }
        return nullptr;
    }
    // Precondition: the cache does not contain `piece`.
    void insert(std::string_view piece, std::span<const uint32_t> ids) {
        if (count_ >= slots / 2) clear();
        const uint64_t h = hash(piece);
        size_t i = h & mask;
        while (slots_[i].used) i = (i + 1) & mask;
        slots_[i] = {h,
                     static_cast<uint32_t>(text_.size()),
                     static_cast<uint32_t>(ids_.size()),
                     static_cast<uint16_t>(piece.size()),
                     static_cast<uint16_t>(ids.size()),
                     true};
        text_ += piece;
        ids_.insert(ids_.end(), ids.begin(), ids.end());
        ++count_;
    }

private:
    static constexpr size_t slots = size_t{1} << 16, mask = slots - 1;
    struct Slot {
        uint64_t hash = 0;
        uint32_t text = 0, ids = 0;
        uint16_t size = 0, count = 0;
        bool used = false;
    };

    static uint64_t hash(std::string_view piece) {
        uint64_t h = piece.size() * 0x9E3779B97F4A7C15u;
        const char* p = piece.data();
        size_t n = piece.size();
        for (; n >= 8; p += 8, n -= 8) h = mix(h ^ load(p, 8));
        return n ? mix(h ^ load(p, n)) : h;
    }
    static uint64_t load(const char* p, size_t n) {
        uint64_t v = 0;
        std::memcpy(&v, p, n);
        return v;
    }
    static uint64_t mix(uint64_t v) {
        v *= 0xD6E8FEB86659FD93u;
        v ^= v >> 32;
        v *= 0xD6E8FEB86659FD93u;
        return v ^ v >> 29;
    }
    void clear() {
        slots_.assign(slots, {});
        text_.clear();
        ids_.clear();
        count_ = 0;
    }

    std::vector<Slot> slots_ = std::vector<Slot>(slots);
    std::string text_;
    std::vector<uint32_t> ids_;
    std::span<const uint32_t> found_;
    size_t count_ = 0;
};

}  // namespace nibble
