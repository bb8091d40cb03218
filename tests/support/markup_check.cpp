#include "support/markup_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>

namespace nibble::test {
namespace {

constexpr std::array<std::string_view, 4> void_tags{"meta", "wbr", "input", "br"};

struct Reader {
    std::string_view text;
    size_t at = 0;

    bool done() const { return at >= text.size(); }
    bool take(std::string_view what) {
        if (!text.substr(at).starts_with(what)) return false;
        at += what.size();
        return true;
    }
    std::string word() {
        const size_t begin = at;
        while (!done() && (std::isalnum(static_cast<unsigned char>(text[at])) || text[at] == '-')) ++at;
        return std::string(text.substr(begin, at - begin));
    }
};

// Returns true if the text between '&' and ';' is one of the five entities that pages use.
bool entity_ok(std::string_view rest) {
    for (std::string_view e : {"amp;", "lt;", "gt;", "#34;", "#39;"})
        if (rest.starts_with(e)) return true;
    return false;
}

std::string read_attributes(Reader& in, MarkupTag& tag) {
    while (in.take(" ")) {
        const std::string key = in.word();
        if (key.empty()) return "attribute without a name";
        std::string value;
        if (in.take("=")) {
            if (!in.take("\"")) return fmt::format("attribute '{}' without quotes", key);
            const size_t end = in.text.find('"', in.at);
            if (end == std::string_view::npos) return fmt::format("attribute '{}' does not end", key);
            value = in.text.substr(in.at, end - in.at);
            in.at = end + 1;
            if (value.find('<') != std::string::npos) return fmt::format("'<' in attribute '{}'", key);
        }
        tag.attributes.emplace_back(key, value);
    }
    return {};
}

}  // namespace

std::string MarkupTag::attribute(std::string_view key) const {
    for (const auto& [k, v] : attributes)
        if (k == key) return v;
    return {};
}

Markup check_markup(std::string_view page) {
    Markup result;
    std::vector<std::string> open;
    Reader in{page};
    const auto error = [&](std::string what) {
        result.error = fmt::format("{} near '{}'", what, page.substr(in.at > 60 ? in.at - 60 : 0, 120));
        return result;
    };
    if (!in.take("<!DOCTYPE html>")) return error("no document type");
    while (!in.done()) {
        const char c = page[in.at];
        if (c == '&' && !entity_ok(page.substr(in.at + 1))) return error("stray '&'");
        if (c == '>') return error("stray '>'");
        if (c != '<') {
            ++in.at;
        } else if (in.take("</")) {
            const std::string name = in.word();
            if (!in.take(">")) return error("end tag does not end");
            if (open.empty() || open.back() != name)
                return error(fmt::format("</{}> closes <{}>", name, open.empty() ? "" : open.back()));
            open.pop_back();
        } else {
            ++in.at;
            MarkupTag tag{.name = in.word()};
            if (tag.name.empty()) return error("stray '<'");
            if (const std::string problem = read_attributes(in, tag); !problem.empty()) return error(problem);
            const bool closed = in.take("/");
            if (!in.take(">")) return error(fmt::format("<{}> does not end", tag.name));
            result.tags.push_back(tag);
            if (closed || std::ranges::find(void_tags, tag.name) != void_tags.end()) continue;
            if (tag.name == "style" || tag.name == "script") {  // raw text
                const size_t end = page.find(fmt::format("</{}>", tag.name), in.at);
                if (end == std::string_view::npos) return error(fmt::format("<{}> is not closed", tag.name));
                in.at = end;
            }
            open.push_back(tag.name);
        }
    }
    if (!open.empty()) return error(fmt::format("<{}> is not closed", open.back()));
    return result;
}

bool is_utf8(std::string_view text) {
    for (size_t i = 0; i < text.size();) {
        const auto lead = static_cast<unsigned char>(text[i]);
        const size_t length = lead < 0x80   ? 1
                              : lead < 0xC2 ? 0
                              : lead < 0xE0 ? 2
                              : lead < 0xF0 ? 3
                              : lead < 0xF5 ? 4
                                            : 0;
        if (length == 0 || i + length > text.size()) return false;
        uint32_t code = length == 1 ? lead : lead & (0x7Fu >> length);
        for (size_t k = 1; k < length; ++k) {
            const auto next = static_cast<unsigned char>(text[i + k]);
            if ((next & 0xC0) != 0x80) return false;
            code = (code << 6) | (next & 0x3Fu);
        }
        if ((length == 3 && code < 0x800) || (length == 4 && (code < 0x10000 || code > 0x10FFFF)) ||
            (code >= 0xD800 && code < 0xE000))
            return false;
        i += length;
    }
    return true;
}

Json page_data(std::string_view page) {
    constexpr std::string_view begin = "<script type=\"application/json\" id=\"data\"", end = "</script>";
    const size_t tag = page.find(begin);
    if (tag == page.npos) return nullptr;
    const size_t from = page.find('>', tag) + 1;
    const auto json = parse_json(page.substr(from, page.find(end, from) - from));
    return json.ok() ? *json : Json();
}

}  // namespace nibble::test
