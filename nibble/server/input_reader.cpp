#include "server/input_reader.h"

#include "base/json.h"
#include "base/utf8.h"

namespace nibble {
namespace {

constexpr std::string_view blanks = " \t\r\n";

// Returns the number of bytes inside a JSON string that can be decoded without later bytes: no partial character,
// escape or surrogate pair. `ends`: the closing quote follows.
size_t readable(std::string_view text, bool& ends) {
    ends = false;
    for (size_t at = 0; at < text.size();) {
        if (text[at] == '"') {
            ends = true;
            return at;
        }
        if (text[at] != '\\') {
            const Utf8Step step = utf8_step(text, at);
            if (step.cut) return at;
            at += step.size;
            continue;
        }
        if (at + 1 >= text.size()) return at;
        if (text[at + 1] != 'u') {
            at += 2;
            continue;
        }
        if (at + 6 > text.size()) return at;
        const std::string_view digits = text.substr(at + 2, 2);
        const bool high = (digits[0] == 'd' || digits[0] == 'D') &&
                          std::string_view("89abAB").find(digits[1]) != std::string_view::npos;
        if (high && at + 12 > text.size()) return at;
        at += high ? 12 : 6;
    }
    return text.size();
}

}  // namespace

// Reads the opening brace, the first member's name and the quote of its text. Returns false if more input is needed.
bool InputReader::read_head() {
    size_t at = 0;
    const auto wants = [&](char c) {
        at = pending_.find_first_not_of(blanks, at);
        if (at == std::string::npos) return false;
        if (pending_[at] != c) place_ = Place::raw;
        ++at;
        return place_ == Place::head;
    };
    if (!wants('{') || !wants('"')) return place_ == Place::raw;
    bool ends = false;
    at += readable(std::string_view(pending_).substr(at), ends);
    if (!ends) return false;
    ++at;
    if (!wants(':') || !wants('"')) return place_ == Place::raw;
    pending_.erase(0, at);
    place_ = Place::text;
    return true;
}

std::string InputReader::push(std::string_view piece) {
    pending_ += piece;
    if (place_ == Place::head && !read_head()) return {};
    if (place_ == Place::raw) return std::exchange(pending_, {});
    if (place_ == Place::end) {
        pending_.clear();
        return {};
    }
    bool ends = false;
    const size_t size = readable(pending_, ends);
    const std::string inside = pending_.substr(0, size);
    pending_.erase(0, size);
    if (ends) place_ = Place::end;
    const auto text = parse_json('"' + inside + '"');
    return text.ok() ? text->get<std::string>() : inside;
}

}  // namespace nibble
