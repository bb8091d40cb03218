#include "text/sentencepiece_model.h"

#include "text/unicode.h"

#include <bit>
#include <cmath>
#include <cstring>

namespace nibble {
namespace {

// Reads the fields of one protobuf message in order.
class Fields {
public:
    explicit Fields(std::string_view bytes) : rest_(bytes) {}

    uint64_t number = 0, value = 0;  // value: varint, fixed32 or fixed64
    std::string_view bytes;          // content of a length-delimited field

    // Reads the next field; returns false at the end.
    Result<bool> next() {
        if (rest_.empty()) return false;
        NIBBLE_TRY(const uint64_t tag, varint());
        number = tag >> 3;
        bytes = {};
        value = 0;
        switch (tag & 7) {
            case 0: {
                NIBBLE_TRY(value, varint());
                return true;
            }
            case 1:
                return fixed(8);
            case 5:
                return fixed(4);
            case 2: {
                NIBBLE_TRY(const uint64_t size, varint());
                if (size > rest_.size()) return fail("field {} has {} bytes, {} are left", number, size, rest_.size());
                bytes = rest_.substr(0, size);
                rest_.remove_prefix(size);
                return true;
            }
            default:
                return fail("field {} has the unknown wire type {}", number, tag & 7);
        }
    }

private:
    Result<uint64_t> varint() {
        uint64_t out = 0;
        for (int shift = 0; shift < 70; shift += 7) {
            if (rest_.empty()) return fail("ends inside a number");
            const auto b = static_cast<uint8_t>(rest_[0]);
            rest_.remove_prefix(1);
            if (shift < 64) out |= uint64_t{b & 0x7Fu} << shift;
            if (b < 0x80) return out;
        }
        return fail("a number of more than 10 bytes");
    }
    Result<bool> fixed(size_t size) {
        if (size > rest_.size()) return fail("ends inside a number");
        for (size_t i = 0; i < size; ++i) value |= uint64_t{static_cast<uint8_t>(rest_[i])} << (8 * i);
        rest_.remove_prefix(size);
        return true;
    }

    std::string_view rest_;
};

template <class Visit>
Status each_field(std::string_view bytes, Visit&& visit) {
    Fields fields(bytes);
    while (true) {
        NIBBLE_TRY(const bool more, fields.next());
        if (!more) return Ok{};
        NIBBLE_CHECK(visit(fields));
    }
}

Result<SentencePieceModel::Piece> parse_piece(std::string_view bytes) {
    SentencePieceModel::Piece out;
    NIBBLE_CHECK(each_field(bytes, [&](const Fields& f) -> Status {
        if (f.number == 1) out.text = f.bytes;
        if (f.number == 2) out.score = std::bit_cast<float>(static_cast<uint32_t>(f.value));
        if (f.number == 3) out.type = static_cast<SentencePieceModel::Type>(f.value);
        if (f.number == 3 && (f.value < 1 || f.value > 6)) return fail("unknown type {}", f.value);
        return Ok{};
    }));
    if (!std::isfinite(out.score)) return fail("the score is not a finite number");
    if (out.text.empty() || !utf8_valid(out.text)) return fail("the text is empty or not UTF-8");
    return out;
}

}  // namespace

Result<SentencePieceModel> parse_sentencepiece(std::string_view bytes) {
    SentencePieceModel out;
    const auto trainer = [&](const Fields& f) -> Status {
        if (f.number == 3) out.algorithm = static_cast<SentencePieceModel::Algorithm>(f.value);
        if (f.number == 24) out.whitespace_as_suffix = f.value != 0;
        if (f.number == 35) out.byte_fallback = f.value != 0;
        if (f.number == 41) out.bos = static_cast<int32_t>(f.value);
        if (f.number == 42) out.eos = static_cast<int32_t>(f.value);
        return Ok{};
    };
    const auto normalizer = [&](const Fields& f) -> Status {
        if (f.number == 2) out.charsmap = f.bytes;
        if (f.number == 3) out.add_dummy_prefix = f.value != 0;
        if (f.number == 4) out.remove_extra_whitespaces = f.value != 0;
        if (f.number == 5) out.escape_whitespaces = f.value != 0;
        return Ok{};
    };
    NIBBLE_CHECK(each_field(bytes, [&](const Fields& f) -> Status {
        if (f.number == 1) {
            NIBBLE_TRY(auto piece, parse_piece(f.bytes).within(fmt::format("piece {}", out.pieces.size())));
            out.pieces.push_back(std::move(piece));
        }
        if (f.number == 2) return each_field(f.bytes, trainer);
        if (f.number == 3) return each_field(f.bytes, normalizer);
        return Ok{};
    }));
    if (out.pieces.empty()) return fail("not a sentencepiece model: it has no pieces");
    return out;
}

}  // namespace nibble
