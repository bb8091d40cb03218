// Token texts by id and ids by text, and the alphabet of byte-level BPE.
#pragma once

#include "base/error.h"

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace nibble {

struct TextHash {
    using is_transparent = void;
    size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
};
using TextIds = std::unordered_map<std::string, uint32_t, TextHash, std::equal_to<>>;

class Vocabulary {
public:
    // Adds a token. The same text with the same id may be added twice (added tokens repeat the model's). Errors: an id
    // beyond 2^22, any other repeated id or text.
    Status add(std::string_view text, uint64_t id);

    std::optional<uint32_t> find(std::string_view text) const {
        const auto it = ids_.find(text);
        return it == ids_.end() ? std::nullopt : std::optional(it->second);
    }
    size_t size() const { return texts_.size(); }  // largest id + 1
    bool has(uint32_t id) const { return id < texts_.size() && present_[id]; }
    const std::string& text(uint32_t id) const { return texts_[id]; }  // precondition: id < size()

private:
    std::vector<std::string> texts_;
    std::vector<bool> present_;
    TextIds ids_;
};

// GPT-2's byte alphabet: every byte is one printable character. Bytes 33-126, 161-172 and 174-255 map to themselves,
// the others to U+0100 and up in increasing order.
class ByteAlphabet {
public:
    ByteAlphabet();
    std::optional<uint8_t> byte(char32_t character) const;
    // Returns the bytes of a token, or nothing if it has a character outside the alphabet.
    std::optional<std::string> bytes(std::string_view token) const;

private:
    std::array<int16_t, 512> byte_of_;
};

// Parses "<0xNN>" with two upper- or lower-case hexadecimal digits.
std::optional<uint8_t> byte_token(std::string_view token);

}  // namespace nibble
