#include "page/html.h"

#include "base/embedded.h"
#include "page/svg.h"

#include <fmt/format.h>

#include <cmath>

namespace nibble {

std::span<const EmbeddedFile> page_assets_embedded();  // nibble/page/assets

namespace {

std::string_view asset(std::string_view name) {
    for (const EmbeddedFile& file : page_assets_embedded())
        if (file.path == name) return file.content;
    return {};
}

}  // namespace

std::string cell(std::string_view text, std::string_view css) {
    if (css.empty()) return fmt::format("<td>{}</td>", escape_html(text));
    return fmt::format("<td class=\"{}\">{}</td>", css, escape_html(text));
}

std::string breakable_name(std::string_view name) {
    std::string out = escape_html(name);
    for (size_t dot = 0; (dot = out.find('.', dot)) != std::string::npos; dot += 6) out.insert(dot + 1, "<wbr>");
    return out;
}

std::string name_cell(std::string_view name) { return fmt::format("<td class=\"name\">{}</td>", breakable_name(name)); }

std::string number_cell(std::string_view text, double sort_value) {
    // Infinite losses sort last. Six digits are enough for the script to sort.
    return fmt::format("<td data-v=\"{:.6g}\">{}</td>", std::isfinite(sort_value) ? sort_value : 1e9,
                       escape_html(text));
}

std::string table(std::string_view css, std::span<const std::string> heads, std::string_view rows) {
    std::string head;
    for (const std::string_view h : heads)
        head += h.starts_with('<') ? fmt::format("<th class=\"l\">{}</th>", escape_html(h.substr(1)))
                                   : fmt::format("<th>{}</th>", escape_html(h));
    return fmt::format(
        "<div class=\"table{}\"><table class=\"{}\"><thead><tr>{}</tr></thead>\n<tbody>{}</tbody></table></div>",
        css.find("filterable") == std::string_view::npos ? "" : " scroll", css, head, rows);
}

std::string card(std::string_view what, std::string_view figure, std::string_view more, bool wide) {
    return fmt::format(
        "<div class=\"card{}\"><div class=\"what\">{}</div><div class=\"figure\">{}</div><div "
        "class=\"more\">{}</div></div>\n",
        wide ? " wide" : "", what, figure, more);
}

std::string with_units(std::string_view text) {
    std::string out;
    while (!text.empty()) {
        const std::string_view word = text.substr(0, text.find(' '));
        text.remove_prefix(std::min(text.size(), word.size() + 1));
        const bool number = word.find_first_of("0123456789") == 0;
        if (!out.empty()) out += number ? " " : "\u202F";
        out += number ? std::string(word) : fmt::format("<small>{}</small>", word);
    }
    return out;
}

std::string document(std::string_view title, std::string_view main, int reload_seconds) {
    const std::string reload =
        reload_seconds > 0 ? fmt::format("<meta http-equiv=\"refresh\" content=\"{}\">\n", reload_seconds) : "";
    return fmt::format(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
        "<meta http-equiv=\"Content-Security-Policy\" "
        "content=\"default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'\">\n"
        "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n{}<title>{}</title>\n"
        "<style>\n{}</style>\n</head>\n<body>\n<main>\n{}</main>\n<script>\n{}</script>\n</body>\n</html>\n",
        reload, escape_html(title), asset("page.css"), main, asset("page.js"));
}

}  // namespace nibble
