#include "jobs/words.h"

#include <cctype>
#include <charconv>
#include <cmath>

namespace nibble {

Result<Dialect> parse_dialect(std::string_view word) {
    for (Dialect d : {Dialect::modelopt, Dialect::compressed_tensors, Dialect::gguf, Dialect::plain})
        if (dialect_name(d) == word) return d;
    return fail(ErrorKind::usage, "unknown format '{}'; choices: modelopt, compressed-tensors, gguf, plain", word);
}

Result<Arithmetic> parse_arithmetic(std::string_view word) {
    if (word == "reciprocal") return Arithmetic::reciprocal;
    if (word == "true") return Arithmetic::true_division;
    return fail(ErrorKind::usage, "unknown arithmetic '{}'; choices: reciprocal, true", word);
}

Result<Format> parse_format(std::string_view word) {
    if (word == "bf16") return Format::none;
    if (const auto format = format_from_name(word)) return *format;
    std::string choices = "bf16";
    for (Format f : all_formats()) choices += fmt::format(", {}", format_name(f));
    return fail(ErrorKind::usage, "unknown format '{}'; choices: {}", word, choices);
}

Result<int64_t> parse_size(std::string_view word) {
    double value = 0;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
    std::string unit;
    for (const char* c = end; c != word.data() + word.size(); ++c)
        unit += static_cast<char>(std::toupper(static_cast<unsigned char>(*c)));
    double factor = unit.empty() || unit == "B" ? 1 : 0, decimal = 1, binary = 1;
    for (const char letter : {'K', 'M', 'G', 'T'}) {
        decimal *= 1e3, binary *= 1024;
        if (unit == std::string{letter, 'B'}) factor = decimal;
        if (unit == std::string(1, letter) || unit == std::string{letter, 'I', 'B'}) factor = binary;
    }
    if (error != std::errc{} || factor == 0 || !(value * factor >= 1) || value * factor > 9e18)
        return fail(ErrorKind::usage, "'{}' is not a size; examples: 5GB, 500MB, 512M (of 1024 KiB), 1000000", word);
    return static_cast<int64_t>(std::llround(value * factor));
}

Result<int64_t> parse_size_or_zero(std::string_view word) {
    if (word == "0") return 0;
    return parse_size(word);
}

Result<RangeRule> parse_range_rule(std::string_view word) {
    if (word == "max") return RangeRule{};
    if (word == "mse") return RangeRule{RangeRule::Kind::mse, 0};
    constexpr std::string_view prefix = "percentile:";
    double percentile = 0;
    if (word.starts_with(prefix)) {
        const auto number = word.substr(prefix.size());
        const auto [end, problem] = std::from_chars(number.data(), number.data() + number.size(), percentile);
        if (problem == std::errc{} && end == number.data() + number.size() && percentile > 0 && percentile <= 100)
            return RangeRule{RangeRule::Kind::percentile, percentile};
    }
    return fail(ErrorKind::usage, "unknown --calib-range '{}'; choices: max, percentile:P with 0 < P <= 100, mse",
                word);
}

Result<SumOrder> parse_sum_order(std::string_view word) {
    if (word == "lanes") return SumOrder::lanes;
    if (word == "tiles") return SumOrder::tiles;
    return fail(ErrorKind::usage, "--sums {}: choose lanes or tiles", word);
}

}  // namespace nibble
