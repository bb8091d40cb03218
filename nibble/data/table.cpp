#include "data/table.h"

#include <algorithm>

namespace nibble {
namespace {

constexpr std::string_view white_space = " \t\r\n";

void skip(std::string_view& rest, std::string_view characters) {
    const size_t begin = rest.find_first_not_of(characters);
    rest.remove_prefix(begin == rest.npos ? rest.size() : begin);
}

// Returns the text of the first field and removes it from `rest`.
Result<std::string> next_field(std::string_view& rest, char separator) {
    std::string field;
    if (!rest.starts_with('"')) {
        const char ends[] = {separator, '\n'};
        const size_t end = std::min(rest.find_first_of(std::string_view(ends, 2)), rest.size());
        field = rest.substr(0, end);
        if (field.ends_with('\r') && (end == rest.size() || rest[end] == '\n')) field.pop_back();
        rest.remove_prefix(end);
        return field;
    }
    rest.remove_prefix(1);
    for (;;) {
        const size_t quote = rest.find('"');
        if (quote == rest.npos) return fail("a quote is not closed");
        field += rest.substr(0, quote);
        rest.remove_prefix(quote + 1);
        if (!rest.starts_with('"')) break;
        field += '"';
        rest.remove_prefix(1);
    }
    if (rest.starts_with('\r')) rest.remove_prefix(1);
    if (!rest.empty() && rest.front() != separator && rest.front() != '\n')
        return fail("a quoted field is followed by '{}'", rest.front());
    return field;
}

}  // namespace

Result<std::optional<std::vector<std::string>>> next_record(std::string_view& rest, char separator) {
    skip(rest, "\r\n");
    std::vector<std::string> fields;
    if (rest.empty()) return std::optional<std::vector<std::string>>();
    for (;;) {
        NIBBLE_TRY(fields.emplace_back(), next_field(rest, separator));
        const bool ends = rest.empty() || rest.front() == '\n';
        if (!rest.empty()) rest.remove_prefix(1);
        if (ends) return std::optional(std::move(fields));
    }
}

Result<std::optional<std::string_view>> next_element(std::string_view& rest) {
    skip(rest, white_space);
    if (rest.starts_with(',')) {
        rest.remove_prefix(1);
        skip(rest, white_space);
    }
    if (rest.starts_with(']')) {
        rest.remove_prefix(1);
        skip(rest, white_space);
        if (!rest.empty()) return fail("text follows the end of the list");
        return std::optional<std::string_view>();
    }
    if (rest.empty()) return fail("the list is not closed");
    if (rest.front() != '{') return fail("the list has an element that is not an object");
    int depth = 0;
    bool quoted = false;
    for (size_t i = 0; i < rest.size(); ++i) {
        const char c = rest[i];
        if (quoted) {
            if (c == '\\') ++i;
            if (c == '"') quoted = false;
            continue;
        }
        if (c == '"') quoted = true;
        if (c == '{' || c == '[') ++depth;
        if ((c == '}' || c == ']') && --depth == 0) {
            const std::string_view element = rest.substr(0, i + 1);
            rest.remove_prefix(i + 1);
            return std::optional(element);
        }
    }
    return fail("an object is not closed");
}

}  // namespace nibble
