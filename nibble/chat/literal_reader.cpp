#include "chat/literal_reader.h"

#include "base/json.h"
#include "base/utf8.h"

#include <algorithm>

namespace nibble {
namespace {

constexpr std::string_view literal_blanks = " \t\r\n";

std::string json_text(std::string_view text) { return Json(text).dump(-1, ' ', false, Json::error_handler_t::replace); }

std::string_view without_blanks(std::string_view text) {
    const size_t first = text.find_first_not_of(literal_blanks);
    if (first == text.npos) return {};
    return text.substr(first, text.find_last_not_of(literal_blanks) + 1 - first);
}

}  // namespace

size_t LiteralReader::read(std::string_view text, bool last, std::string& json) {
    size_t at = 0;
    while (!ended_ && at < text.size()) {
        const size_t n = step(text.substr(at), last, json);
        if (n == 0) break;
        at += n;
    }
    return at;
}

// Returns the number of bytes read; 0: more are needed.
size_t LiteralReader::step(std::string_view text, bool last, std::string& json) {
    if (place_ == Place::string) return read_string(text, last, json);
    const char c = text[0];
    if (literal_blanks.find(c) != literal_blanks.npos) return 1;
    if (c == '}' || c == ']' || c == ')') return close(json);
    if (place_ == Place::after || c == ',') {
        if (c == ',') place_ = open_.back() == '{' ? Place::name : Place::value;
        return 1;
    }
    return place_ == Place::name ? read_name(text, json) : read_value(text, last, json);
}

size_t LiteralReader::close(std::string& json) {
    json += open_.back() == '{' ? '}' : ']';
    open_.pop_back();
    ended_ = open_.empty();
    place_ = Place::after;
    empty_ = false;
    return 1;
}

// NAME: or "NAME": or, at the outermost level of Python's notation, NAME=
size_t LiteralReader::read_name(std::string_view text, std::string& json) {
    const std::string_view end = open_.size() == 1 ? notation_.name_end : ":";
    for (const std::string_view quote : {notation_.quote, std::string_view("\""), std::string_view("'")})
        if (!quote.empty() && text.starts_with(quote)) {
            const size_t close = text.find(quote, quote.size());
            const size_t colon = close == text.npos ? close : text.find(end, close + quote.size());
            if (colon == text.npos) return 0;
            json += (empty_ ? "" : ",") + json_text(text.substr(quote.size(), close - quote.size())) + ":";
            place_ = Place::value;
            return colon + end.size();
        }
    const size_t colon = text.find(end);
    if (colon == text.npos) return 0;
    json += (empty_ ? "" : ",") + json_text(without_blanks(text.substr(0, colon))) + ":";
    place_ = Place::value;
    return colon + end.size();
}

size_t LiteralReader::read_value(std::string_view text, bool last, std::string& json) {
    if (notation_.quote.size() > text.size() && notation_.quote.starts_with(text) && !last) return 0;
    const std::string comma = open_.back() == '[' && !empty_ ? "," : "";
    for (const std::string_view quote : {notation_.quote, std::string_view("\""), std::string_view("'")})
        if (!quote.empty() && text.starts_with(quote)) {
            json += comma + "\"";
            delimiter_ = quote == "\"" ? "\"" : quote == "'" ? "'" : notation_.quote;
            place_ = Place::string;
            return quote.size();
        }
    if (text[0] == '{' || text[0] == '[' || text[0] == '(') {
        open_ += text[0] == '{' ? '{' : '[';
        json += comma + open_.back();
        empty_ = true;
        place_ = open_.back() == '{' ? Place::name : Place::value;
        return 1;
    }
    const size_t end = text.find_first_of(",}])");
    if (end == text.npos) return 0;  // an incomplete number is left out
    const std::string_view word = without_blanks(text.substr(0, end));
    const std::string_view same = word == "True" ? "true" : word == "False" ? "false" : word == "None" ? "null" : word;
    json += comma + (Json::accept(same) ? std::string(same) : json_text(word));
    place_ = Place::after;
    empty_ = false;
    return end;
}

// Returns whether a quote closes its string. Templates write strings of Python without escapes, so a quote is part of
// the string unless a comma, a colon or a closing bracket follows.
bool LiteralReader::closes(std::string_view after, bool last, bool& known) const {
    known = true;
    if (delimiter_ == notation_.quote) return true;
    const size_t next = after.find_first_not_of(literal_blanks);
    if (next != after.npos) return std::string_view(",:}])").find(after[next]) != std::string_view::npos;
    known = last;
    return true;
}

size_t LiteralReader::read_string(std::string_view text, bool last, std::string& json) {
    if (text.starts_with(delimiter_)) {
        bool known = false;
        const bool closed = closes(text.substr(delimiter_.size()), last, known);
        if (!known) return 0;
        json += closed ? "\"" : delimiter_ == "\"" ? "\\\"" : std::string(delimiter_);
        if (closed) {
            place_ = Place::after;
            empty_ = false;
        }
        return delimiter_.size();
    }
    if (text.size() < delimiter_.size() && delimiter_.starts_with(text)) return 0;
    if (text[0] == '\\' && delimiter_ != notation_.quote) return read_escape(text, json);
    const Utf8Step one = utf8_step(text, 0);
    if (one.cut && !last) return 0;
    const std::string quoted = json_text(text.substr(0, one.size));
    json.append(quoted, 1, quoted.size() - 2);
    return one.size;
}

size_t LiteralReader::read_escape(std::string_view text, std::string& json) const {
    if (text.size() < 2) return 0;
    const char c = text[1];
    if (const size_t digits = c == 'u' ? 4 : c == 'x' ? 2 : 0; digits > 0) {
        if (text.size() < 2 + digits) return 0;
        const std::string_view hex = text.substr(2, digits);
        if (std::ranges::all_of(hex, [](char h) { return std::isxdigit(static_cast<unsigned char>(h)) != 0; })) {
            json += "\\u" + std::string(4 - digits, '0') + std::string(hex);
            return 2 + digits;
        }
    }
    constexpr std::string_view same = "\"\\/bfnrt";
    if (same.find(c) != same.npos) {
        json += text.substr(0, 2);
        return 2;
    }
    if (c == '\'') {
        json += '\'';
        return 2;
    }
    json += "\\\\";  // Python keeps the backslash of an unknown escape
    return 1;
}

}  // namespace nibble
