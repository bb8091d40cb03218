#include "quant/report_page.h"

#include "quant/report_svg.h"

#include <fmt/format.h>

#include <cmath>

namespace nibble {

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
    // Infinite losses sort last; JSON-like digits, so that the script reads them exactly enough.
    return fmt::format("<td data-v=\"{:.6g}\">{}</td>", std::isfinite(sort_value) ? sort_value : 1e9,
                       escape_html(text));
}

std::string_view format_style(Format format) {
    switch (format) {
        case Format::none:
            return "plain";
        case Format::nvfp4:
            return "s0";
        case Format::fp8:
            return "s1";
        case Format::mxfp4:
            return "s2";
        case Format::mxfp8:
            return "s3";
        case Format::nvfp4_bs32:
            return "s4";
        case Format::fp8_row:
            return "s5";
        case Format::fp8_block128:
            return "s6";
    }
    __builtin_unreachable();
}

std::string table(std::string_view css, std::initializer_list<std::string_view> heads, std::string_view rows) {
    std::string head;
    for (std::string_view h : heads)
        head += h.starts_with('<') ? fmt::format("<th class=\"l\">{}</th>", escape_html(h.substr(1)))
                                   : fmt::format("<th>{}</th>", escape_html(h));
    return fmt::format(
        "<div class=\"table{}\"><table class=\"{}\"><thead><tr>{}</tr></thead>\n<tbody>{}</tbody></table></div>",
        css.find("filterable") == std::string_view::npos ? "" : " scroll", css, head, rows);
}

}  // namespace nibble
