#include "page/svg.h"

#include "base/html.h"
#include "base/utf8.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <span>

namespace nibble {
namespace {

constexpr std::string_view replacement = "\xEF\xBF\xBD";  // U+FFFD

// The drawing area inside the margins, and the mapping from data to pixels.
struct Frame {
    double left, top, right, bottom;
    double x_low, x_high, y_low, y_high;

    double x(double v) const { return left + (v - x_low) / (x_high - x_low) * (right - left); }
    double y(double v) const { return bottom - (v - y_low) / (y_high - y_low) * (bottom - top); }
};

Frame make_frame(int width, int height, double x_low, double x_high, double y_low, double y_high, bool labels) {
    if (!(x_high > x_low)) x_high = x_low + 1;
    if (!(y_high > y_low)) y_high = y_low + 1;
    return {labels ? 58.0 : 34.0, 10, width - 12.0, height - (labels ? 46.0 : 24.0), x_low, x_high, y_low, y_high};
}

std::string n(double v) { return short_number(v, 1); }

void open_svg(std::string& out, std::string_view title, int width, int height) {
    out += fmt::format("<svg viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"{}\">", width, height, escape_html(title));
}

void draw_axes(std::string& out, const Frame& f, std::span<const Tick> x_ticks, std::span<const Tick> y_ticks,
               std::string_view x_label, std::string_view y_label) {
    auto at = std::back_inserter(out);
    for (const Tick& t : y_ticks) {
        const double y = f.y(t.at);
        fmt::format_to(at, "<path class=\"grid\" d=\"M{} {}H{}\"/>", n(f.left), n(y), n(f.right));
        fmt::format_to(at, "<text class=\"tick\" x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text>", n(f.left - 7),
                       n(y + 4), escape_html(t.label));
    }
    fmt::format_to(at, "<path class=\"axis\" d=\"M{} {}H{}\"/>", n(f.left), n(f.bottom), n(f.right));
    for (const Tick& t : x_ticks) {
        const double x = f.x(t.at);
        fmt::format_to(at, "<path class=\"axis\" d=\"M{} {}v4\"/>", n(x), n(f.bottom));
        fmt::format_to(at, "<text class=\"tick\" x=\"{}\" y=\"{}\" text-anchor=\"middle\">{}</text>", n(x),
                       n(f.bottom + 17), escape_html(t.label));
    }
    if (!x_label.empty())
        fmt::format_to(at, "<text class=\"label\" x=\"{}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
                       n((f.left + f.right) / 2), n(f.bottom + 38), escape_html(x_label));
    if (!y_label.empty())
        fmt::format_to(
            at, "<text class=\"label\" transform=\"translate(14 {}) rotate(-90)\" text-anchor=\"middle\">{}</text>",
            n((f.top + f.bottom) / 2), escape_html(y_label));
}

bool drawable(const SeriesPoint& p) { return std::isfinite(p.mid) && std::isfinite(p.low) && std::isfinite(p.high); }

// Returns straight pieces through the drawable points; a missing point breaks the line.
std::string polyline(const Frame& f, const Series& s) {
    std::string d;
    bool pen_down = false;
    for (const SeriesPoint& p : s.points) {
        if (!drawable(p)) {
            pen_down = false;
            continue;
        }
        fmt::format_to(std::back_inserter(d), "{}{} {}", pen_down ? 'L' : 'M', n(f.x(p.x)), n(f.y(p.mid)));
        pen_down = true;
    }
    return d;
}

// Returns the outline of low ... high, one closed area per run of drawable points. A single point is widened by half a
// step.
std::string band(const Frame& f, const Series& s) {
    std::string d;
    for (size_t begin = 0; begin < s.points.size();) {
        size_t end = begin;
        while (end < s.points.size() && drawable(s.points[end])) ++end;
        if (end == begin) {
            ++begin;
            continue;
        }
        const double widen = end - begin == 1 ? 0.3 : 0;
        char command = 'M';
        for (size_t i = begin; i < end; ++i, command = 'L') {
            const SeriesPoint& p = s.points[i];
            fmt::format_to(std::back_inserter(d), "{}{} {}", command, n(f.x(p.x - widen)), n(f.y(p.high)));
            if (widen > 0) fmt::format_to(std::back_inserter(d), "H{}", n(f.x(p.x + widen)));
        }
        for (size_t i = end; i-- > begin;) {
            const SeriesPoint& p = s.points[i];
            fmt::format_to(std::back_inserter(d), "L{} {}", n(f.x(p.x + widen)), n(f.y(p.low)));
            if (widen > 0) fmt::format_to(std::back_inserter(d), "H{}", n(f.x(p.x - widen)));
        }
        d += 'Z';
        begin = end;
    }
    return d;
}

// Returns one of eight shapes of about equal weight around (x, y).
std::string marker(int style, double x, double y, double r) {
    const auto at = [&](double dx, double dy) { return fmt::format("{} {}", n(x + dx * r), n(y + dy * r)); };
    const std::string t = n(r), t2 = n(2 * r);
    switch (style % series_styles) {
        case 0:
            return fmt::format("M{}a{} {} 0 1 0 {} 0a{} {} 0 1 0-{} 0z", at(-1, 0), t, t, t2, t, t, t2);
        case 1:
            return fmt::format("M{}h{}v{}h-{}z", at(-0.9, -0.9), n(1.8 * r), n(1.8 * r), n(1.8 * r));
        case 2:
            return fmt::format("M{}L{}L{}z", at(0, -1.2), at(1.15, 0.9), at(-1.15, 0.9));
        case 3:
            return fmt::format("M{}L{}L{}L{}z", at(0, -1.3), at(1.3, 0), at(0, 1.3), at(-1.3, 0));
        case 4:
            return fmt::format("M{}L{}L{}z", at(0, 1.2), at(1.15, -0.9), at(-1.15, -0.9));
        case 5:
            return fmt::format("M{}L{}M{}L{}", at(-1.2, 0), at(1.2, 0), at(0, -1.2), at(0, 1.2));
        case 6:
            return fmt::format("M{}L{}M{}L{}", at(-1, -1), at(1, 1), at(-1, 1), at(1, -1));
        default:
            return fmt::format("M{}h{}M{}h{}", at(-1.1, -0.5), n(2.2 * r), at(-1.1, 0.5), n(2.2 * r));
    }
}

bool stroked(int style) { return style % series_styles >= 5; }

}  // namespace

std::string escape_html(std::string_view text) {
    std::string out;
    out.reserve(text.size());
    for (size_t i = 0; i < text.size();) {
        const Utf8Step step = utf8_step(text, i);
        const bool control = (step.code < 0x20 && step.code != '\n' && step.code != '\t') || step.code == 0x7F;
        if (!step.valid || control) {
            out += replacement;
        } else {
            for (const char c : text.substr(i, step.size)) append_html(out, c);
        }
        i += step.size;
    }
    return out;
}

std::string short_number(double value, int decimals) {
    if (!std::isfinite(value)) return std::isnan(value) ? "–" : value > 0 ? "∞" : "−∞";
    std::string text = fmt::format("{:.{}f}", value, decimals);
    if (text.find('.') != std::string::npos) {
        text.erase(text.find_last_not_of('0') + 1);
        if (text.back() == '.') text.pop_back();
    }
    return text == "-0" ? "0" : text;
}

std::vector<Tick> nice_ticks(double low, double high, int count, double smallest) {
    std::vector<Tick> ticks;
    if (!std::isfinite(low) || !std::isfinite(high) || !(high > low)) return ticks;
    const double rough = (high - low) / std::max(count, 1);
    const double power = std::pow(10.0, std::floor(std::log10(rough)));
    const double factor = rough / power;
    const double step = std::max(smallest, power * (factor <= 1 ? 1 : factor <= 2 ? 2 : factor <= 5 ? 5 : 10));
    const int decimals = std::clamp(static_cast<int>(std::ceil(-std::log10(step) - 1e-9)), 0, 12);
    const double first = std::ceil(low / step - 1e-9);
    for (int i = 0; i < 10 * count + 10; ++i) {
        const double at = (first + i) * step;
        if (at > high + 1e-9 * step) break;
        ticks.push_back({at, short_number(at, decimals)});
    }
    return ticks;
}

std::string marker_icon(int style) {
    return fmt::format(
        "<svg class=\"icon\" viewBox=\"0 0 14 14\" aria-hidden=\"true\"><path class=\"{} s{}\" d=\"{}\"/></svg>",
        stroked(style) ? "mo" : "m", style % series_styles, marker(style, 7, 7, 4));
}

std::string draw(const LineChart& c) {
    const bool labels = !c.x_label.empty() || !c.y_label.empty();
    const std::vector<Tick> y_ticks = nice_ticks(c.y_low, c.y_high, std::max(c.height / 48, 3));
    Frame f = make_frame(c.width, c.height, c.x_low, c.x_high, c.y_low, c.y_high, labels);
    for (const Tick& t : y_ticks)  // a digit is about 7 px wide; the axis label is left of the digits
        if (!c.y_label.empty()) f.left = std::max(f.left, 30 + 7 * static_cast<double>(t.label.size()));
    std::string out;
    auto at = std::back_inserter(out);
    open_svg(out, c.title, c.width, c.height);
    draw_axes(out, f,
              c.x_ticks.empty() ? nice_ticks(std::ceil(c.x_low), c.x_high, std::max(c.width / 70, 3), 1) : c.x_ticks,
              y_ticks, c.x_label, c.y_label);
    for (const Series& s : c.context) fmt::format_to(at, "<path class=\"context\" d=\"{}\"/>", polyline(f, s));
    for (const Series& s : c.series)
        if (std::ranges::any_of(s.points, [](const SeriesPoint& p) { return p.high > p.low; }))
            fmt::format_to(at, "<path class=\"band s{}\" d=\"{}\"/>", s.style % series_styles, band(f, s));
    const double spacing = (f.right - f.left) / std::max(1.0, f.x_high - f.x_low);
    const double r = std::clamp(spacing * 0.3, 1.4, labels ? 3.6 : 2.4);
    for (const Series& s : c.series) {
        fmt::format_to(at, "<g class=\"s{}\"><path class=\"line\" d=\"{}\"/>", s.style % series_styles, polyline(f, s));
        for (const SeriesPoint& p : s.points)
            if (drawable(p))
                fmt::format_to(at, "<path class=\"{}\" d=\"{}\"><title>{}</title></path>",
                               stroked(s.style) ? "mo" : "m", marker(s.style, f.x(p.x), f.y(p.mid), r),
                               escape_html(p.tooltip));
        out += "</g>";
    }
    return out += "</svg>";
}

std::string draw(const BarChart& c) {
    double y_high = c.y_high;
    for (const Bar& b : c.bars)
        if (c.y_high <= 0 && std::isfinite(b.value)) y_high = std::max(y_high, b.value * 1.06);
    if (!(y_high > 0)) y_high = 1;
    const Frame f = make_frame(c.width, c.height, c.x_low, c.x_high, 0, y_high, true);
    std::vector<Tick> y_ticks = nice_ticks(0, c.percent ? y_high * 100 : y_high, 5);
    if (c.percent)
        for (Tick& t : y_ticks) t.at /= 100, t.label += "%";
    std::string out;
    open_svg(out, c.title, c.width, c.height);
    draw_axes(out, f, c.x_ticks, y_ticks, c.x_label, c.y_label);
    out += fmt::format("<g class=\"s{}\">", c.style % series_styles);
    for (const Bar& b : c.bars) {
        const double left = f.x(b.from), right = f.x(b.to), gap = std::min(1.5, (right - left) * 0.12);
        // A value too small to see still gets a hairline: "rare" must not look like "never".
        const double height = b.value > 0 ? std::max(f.bottom - f.y(std::min(b.value, y_high)), 0.7) : 0;
        out +=
            fmt::format("<rect class=\"bar{}\" x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\"><title>{}</title></rect>",
                        b.style < 0 ? "" : fmt::format(" s{}", b.style % series_styles), short_number(left + gap),
                        n(f.bottom - height), short_number(right - left - 2 * gap), n(height), escape_html(b.tooltip));
    }
    return out += "</g></svg>";
}

std::string draw(const HeatStrip& s) {
    const Frame f = make_frame(s.width, s.height, 0, std::max<double>(1, double(s.cells.size())), 0, 1, true);
    double largest = 0;
    for (const HeatCell& c : s.cells) largest = std::max(largest, c.value);
    std::string out;
    open_svg(out, s.title, s.width, s.height);
    draw_axes(out, f, s.x_ticks, {}, s.x_label, {});
    out += fmt::format("<g class=\"s{}\">", s.style % series_styles);
    for (size_t i = 0; i < s.cells.size(); ++i) {
        const HeatCell& c = s.cells[i];
        const double shade = c.value > 0 && largest > 0 ? 0.08 + 0.92 * std::log1p(c.value) / std::log1p(largest) : 0;
        out += fmt::format(
            "<rect class=\"heat\" x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" "
            "fill-opacity=\"{}\"><title>{}</title></rect>",
            short_number(f.x(double(i))), n(f.top), short_number(f.x(1) - f.x(0)), n(f.bottom - f.top),
            short_number(shade, 3), escape_html(c.tooltip));
    }
    return out += "</g></svg>";
}

}  // namespace nibble
