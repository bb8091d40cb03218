#include "text/vocabulary.h"

#include "text/unicode.h"

#include <charconv>

namespace nibble {

Status Vocabulary::add(std::string_view text, uint64_t id) {
    constexpr uint64_t max_id = uint64_t{1} << 22;
    if (id >= max_id) return fail("token id {} is beyond {}", id, max_id);
    if (id >= texts_.size()) {
        texts_.resize(id + 1);
        present_.resize(id + 1);
    }
    const auto [entry, fresh] = ids_.emplace(text, static_cast<uint32_t>(id));
    if (!fresh && entry->second == id) return Ok{};
    if (!fresh) return fail("tokens {} and {} have the same text", entry->second, id);
    if (present_[id]) return fail("token id {} comes twice", id);
    texts_[id] = text;
    present_[id] = true;
    return Ok{};
}

ByteAlphabet::ByteAlphabet() {
    byte_of_.fill(-1);
    char32_t next = 256;
    for (int b = 0; b < 256; ++b) {
        const bool itself = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
        byte_of_[itself ? static_cast<char32_t>(b) : next++] = static_cast<int16_t>(b);
    }
}

std::optional<uint8_t> ByteAlphabet::byte(char32_t character) const {
    if (character >= byte_of_.size() || byte_of_[character] < 0) return std::nullopt;
    return static_cast<uint8_t>(byte_of_[character]);
}

std::optional<std::string> ByteAlphabet::bytes(std::string_view token) const {
    std::string out;
    for (size_t i = 0; i < token.size();) {
        const Utf8Step step = utf8_step(token, i);
        const auto b = byte(step.code);
        if (!b) return std::nullopt;
        out += static_cast<char>(*b);
        i += step.size;
    }
    return out;
}

std::optional<uint8_t> byte_token(std::string_view token) {
    if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return std::nullopt;
    uint8_t value = 0;
    const auto [end, error] = std::from_chars(token.data() + 3, token.data() + 5, value, 16);
    if (error != std::errc() || end != token.data() + 5) return std::nullopt;
    return value;
}

}  // namespace nibble
