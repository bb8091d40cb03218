#include "page/numbers.h"

#include <fmt/format.h>

#include <array>
#include <cmath>

namespace nibble {
namespace {

// Returns three significant digits with a unit; each unit is 1000 times the one before.
template <size_t N>
std::string scaled(double value, const std::array<std::string_view, N>& units) {
    size_t unit = 0;
    while (std::abs(value) >= 999.5 && unit + 1 < N) value /= 1000, ++unit;
    const int decimals = unit == 0 || std::abs(value) >= 99.95 ? 0 : std::abs(value) >= 9.995 ? 1 : 2;
    return fmt::format("{:.{}f}{}", value, decimals, units[unit]);
}

}  // namespace

std::string human_bytes(int64_t bytes) {
    return scaled(double(bytes), std::array<std::string_view, 6>{" B", " kB", " MB", " GB", " TB", " PB"});
}

std::string human_large(int64_t count) {
    return scaled(double(count), std::array<std::string_view, 5>{"", " k", " M", " B", " T"});
}

std::string human_count(int64_t count) {
    const std::string digits = fmt::format("{}", count);
    std::string out;
    for (size_t i = 0; i < digits.size(); ++i) {
        if (i > 0 && digits[i - 1] != '-' && (digits.size() - i) % 3 == 0) out += ',';
        out += digits[i];
    }
    return out;
}

std::string human_seconds(double seconds) {
    if (!std::isfinite(seconds) || seconds < 0) return "–";
    if (seconds < 0.9995) return fmt::format("{:.0f} ms", seconds * 1000);
    if (seconds < 59.95) return fmt::format("{:.1f} s", seconds);
    const int64_t whole = std::llround(seconds);
    if (whole < 3600) return fmt::format("{} min {:02} s", whole / 60, whole % 60);
    return fmt::format("{} h {:02} min", whole / 3600, whole % 3600 / 60);
}

std::string human_db(double decibels) {
    if (std::isnan(decibels)) return "–";
    if (std::isinf(decibels)) return decibels > 0 ? "∞" : "−∞";
    return fmt::format("{:.2f}", decibels);
}

std::string human_share(int64_t part, int64_t whole) {
    if (part == 0 || whole <= 0) return "0";
    const double percent = 100.0 * double(part) / double(whole);
    if (percent < 0.0001) return "< 0.0001%";
    const int decimals = percent >= 9.995 ? 1 : percent >= 0.9995 ? 2 : percent >= 0.09995 ? 3 : 4;
    return fmt::format("{:.{}f}%", percent, decimals);
}

std::string human_value(double value) { return std::isfinite(value) ? fmt::format("{:.4g}", value) : human_db(value); }

std::string human_shape(const std::vector<int64_t>& shape) {
    if (shape.empty()) return "scalar";
    std::string text;
    for (int64_t d : shape) text += fmt::format("{}{}", text.empty() ? "" : " × ", d);
    return text;
}

}  // namespace nibble
