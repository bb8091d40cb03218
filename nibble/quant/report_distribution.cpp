#include "formats/minifloat.h"
#include "page/svg.h"
#include "quant/report_page.h"
#include "quant/report_summary.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>

namespace nibble {
namespace {

std::string share_of(int64_t count, int64_t total) {
    return fmt::format("{} ({})", human_count(count), human_share(count, total));
}

std::string minus(std::string text) {  // uses the minus sign U+2212
    return text.starts_with('-') ? fmt::format("−{}", std::string_view(text).substr(1)) : text;
}

std::string power_of_two(int exponent) {  // returns "1/8", "4"
    return exponent < 0 ? fmt::format("1/{}", int64_t{1} << -exponent) : fmt::format("{}", int64_t{1} << exponent);
}

std::string superscript(int value) {
    static constexpr std::array<std::string_view, 10> digits{"⁰", "¹", "²", "³", "⁴", "⁵", "⁶", "⁷", "⁸", "⁹"};
    std::string out = value < 0 ? "⁻" : "";
    for (char c : fmt::format("{}", std::abs(value))) out += digits[size_t(c - '0')];
    return out;
}

int64_t sum(const std::vector<int64_t>& counts) {
    int64_t total = 0;
    for (int64_t c : counts) total += c;
    return total;
}

std::string fp4_codes(const FormatSummary& f, int style) {
    BarChart chart{
        .title = "How often each E2M1 code occurs", .x_label = "value of the code", .x_high = 16, .style = style};
    chart.y_label = "share of weights";
    chart.width = 520;
    const int64_t total = std::max<int64_t>(sum(f.codes), 1);
    for (int i = 0; i < 16; ++i) {
        const int code = i < 8 ? 15 - i : i - 8;  // ordered by value: -6 ... -0, 0 ... 6
        const float value = e2m1_to_float(uint8_t(code));
        const std::string label = code == 8 ? "−0" : minus(short_number(value, 1));
        const int64_t count = f.codes[size_t(code)];
        chart.bars.push_back(
            {double(i), i + 1.0, double(count) / double(total), fmt::format("{}: {}", label, share_of(count, total))});
        chart.x_ticks.push_back({i + 0.5, label});
    }
    return draw(chart);
}

std::string fp8_codes(const FormatSummary& f, int style) {
    HeatStrip strip{.title = "How often each E4M3 code occurs",
                    .x_label = "value of the code (stronger colour: more weights, logarithmic)"};
    strip.style = style;
    const int64_t total = sum(f.codes);
    for (int i = 0; i < 254; ++i) {
        const int code = i < 127 ? 0xFE - i : i - 127;  // ordered by value: -448 ... -0, 0 ... 448
        const std::string label = code == 0x80 ? "−0" : minus(human_value(e4m3_to_float(uint8_t(code))));
        const int64_t count = f.codes[size_t(code)];
        strip.cells.push_back({double(count), fmt::format("{}: {}", label, share_of(count, total))});
        for (double tick : {448.0, 64.0, 8.0, 1.0, 0.125, 0.015625})
            if (std::abs(e4m3_to_float(uint8_t(code))) == tick)
                strip.x_ticks.push_back(
                    {i + 0.5, fmt::format("{}{}", code > 127 ? "−" : "",
                                          tick < 1 ? power_of_two(std::ilogb(tick)) : short_number(tick))});
        if (code == 0) strip.x_ticks.push_back({double(i), "0"});
    }
    return draw(strip);
}

std::string e4m3_scales(const FormatSummary& f, int style) {
    const int64_t total = std::max<int64_t>(sum(f.scales), 1);
    int first = 127, last = 0;
    for (int b = 1; b < 127; ++b)
        if (f.scales[size_t(b)]) first = std::min(first, b), last = std::max(last, b);
    if (first > last) return {};
    const double low = std::floor(std::log2(double(e4m3_to_float(uint8_t(first)))));
    const double high = std::max(std::floor(std::log2(double(e4m3_to_float(uint8_t(last))))) + 1, low + 2);
    BarChart chart{.title = "Distribution of block scales",
                   .x_label = "stored block scale, E4M3 (logarithmic)",
                   .y_label = "share of blocks",
                   .x_low = low,
                   .x_high = high,
                   .style = style,
                   .width = 520};
    for (int b = first; b <= last; ++b) {
        const float value = e4m3_to_float(uint8_t(b));
        const float next = b == 126 ? 480.0f : e4m3_to_float(uint8_t(b + 1));
        chart.bars.push_back({std::log2(value), std::log2(next), double(f.scales[size_t(b)]) / double(total),
                              fmt::format("{}: {}", human_value(value), share_of(f.scales[size_t(b)], total))});
    }
    const int step = high - low > 10 ? 2 : 1;
    for (int e = int(low); e <= int(high); e += step) chart.x_ticks.push_back({double(e), power_of_two(e)});
    return draw(chart);
}

std::string e8m0_scales(const FormatSummary& f, int style) {
    const int64_t total = std::max<int64_t>(sum(f.scales), 1);
    int first = 255, last = -1;
    for (int b = 0; b < 255; ++b)
        if (f.scales[size_t(b)]) first = std::min(first, b), last = std::max(last, b);
    if (first > last) return {};
    const double margin = std::max(0.5, (11.0 - (last - first)) / 2);  // with few exponents, bars stay narrow
    BarChart chart{.title = "Distribution of block scales",
                   .x_label = "block scale, E8M0",
                   .y_label = "share of blocks",
                   .x_low = first - margin,
                   .x_high = last + 1.0 + margin,
                   .style = style,
                   .width = 520};
    const int step = std::max(1, (last - first) / 10);
    for (int b = first; b <= last; ++b) {
        const std::string label = fmt::format("2{}", superscript(b - 127));
        chart.bars.push_back({double(b), b + 1.0, double(f.scales[size_t(b)]) / double(total),
                              fmt::format("{}: {}", label, share_of(f.scales[size_t(b)], total))});
        if ((b - first) % step == 0) chart.x_ticks.push_back({b + 0.5, label});
    }
    return draw(chart);
}

}  // namespace

std::string distribution_section(const QuantReport& report) {
    std::string out;
    for (const FormatSummary& f : summarize_formats(report)) {
        if (!f.quantized) continue;
        const FormatLayout layout = format_layout(f.format);
        const int style = format_style(f.format)[1] - '0';
        out += fmt::format("<h3>{}</h3>\n", escape_html(f.label));
        const std::string scales = layout.block == 0    ? ""
                                   : layout.e8m0_scales ? e8m0_scales(f, style)
                                                        : e4m3_scales(f, style);
        if (layout.code_bits == 8)
            out += fmt::format(
                "<div class=\"chart\">{}</div>\n{}", fp8_codes(f, style),
                scales.empty() ? ""
                               : fmt::format("<div class=\"pair\"><div class=\"chart half\">{}</div></div>\n", scales));
        else
            out += fmt::format(
                "<div class=\"pair\"><div class=\"chart half\">{}</div><div class=\"chart half\">{}</div></div>\n",
                fp4_codes(f, style), scales);
    }
    if (out.empty()) return {};
    return fmt::format(
        "<section class=\"long\"><h2>Codes and block scales</h2>\n<p class=\"note\">How much of each format's range is "
        "in use. "
        "−0 counts small negative weights that became zero.</p>\n{}</section>\n",
        out);
}

}  // namespace nibble
