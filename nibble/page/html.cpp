#include "page/html.h"

#include "base/embedded.h"
#include "base/html.h"
#include "base/utf8.h"

#include <fmt/format.h>

#include <cmath>
#include <cstdlib>

namespace nibble {

std::span<const EmbeddedFile> page_assets_embedded();  // nibble/page/assets

namespace {

std::string_view asset(std::string_view name) {
    for (const EmbeddedFile& file : page_assets_embedded())
        if (file.path == name) return file.content;
    return {};
}

// JSON has '<' only in strings, where an escape replaces it: no string can end the element or begin a comment.
std::string script_text(const Json& data) {
    const std::string json = data.dump(-1, ' ', false, Json::error_handler_t::replace);
    std::string out;
    out.reserve(json.size());
    for (const char c : json)
        if (c == '<')
            out += "\\u003c";
        else
            out += c;
    return out;
}

}  // namespace

std::string escape_html(std::string_view text) {
    std::string out;
    out.reserve(text.size());
    for (size_t i = 0; i < text.size();) {
        const Utf8Step step = utf8_step(text, i);
        const bool control = (step.code < 0x20 && step.code != '\n' && step.code != '\t') || step.code == 0x7F;
        if (!step.valid || control) {
            out += "\xEF\xBF\xBD";  // U+FFFD
        } else {
            for (const char c : text.substr(i, step.size)) append_html(out, c);
        }
        i += step.size;
    }
    return out;
}

Json rounded(double value) {
    if (!std::isfinite(value)) return nullptr;
    return std::strtod(fmt::format("{:.6g}", value).c_str(), nullptr);
}

std::string document(std::string_view title, std::string_view view, const Json& data, int reload_seconds) {
    const std::string reload =
        reload_seconds > 0 ? fmt::format("<meta http-equiv=\"refresh\" content=\"{}\">\n", reload_seconds) : "";
    return fmt::format(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
        "<meta http-equiv=\"Content-Security-Policy\" "
        "content=\"default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'\">\n"
        "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n{}<title>{}</title>\n"
        "<style>\n{}</style>\n</head>\n<body>\n<main></main>\n"
        "<noscript>A script in this page draws its data, and scripts are off.</noscript>\n"
        "<script type=\"application/json\" id=\"data\" data-view=\"{}\">{}</script>\n"
        "<script>\n{}{}{}{}</script>\n</body>\n</html>\n",
        reload, escape_html(title), asset("page.css"), view, script_text(data), asset("parts.js"), asset("charts.js"),
        asset(fmt::format("views/{}.js", view)), asset("page.js"));
}

}  // namespace nibble
