#include "cli/options.h"

#include <cctype>
#include <charconv>
#include <cmath>

namespace nibble {

Result<Dialect> parse_dialect(std::string_view word) {
    for (Dialect d : {Dialect::modelopt, Dialect::compressed_tensors, Dialect::gguf, Dialect::plain})
        if (dialect_name(d) == word) return d;
    return fail("unknown format '{}'; choices: modelopt, compressed-tensors, gguf, plain", word);
}

Result<Arithmetic> parse_arithmetic(std::string_view word) {
    if (word == "reciprocal") return Arithmetic::reciprocal;
    if (word == "true") return Arithmetic::true_division;
    return fail("unknown arithmetic '{}'; choices: reciprocal, true", word);
}

Result<Format> parse_format(std::string_view word) {
    if (word == "bf16") return Format::none;
    if (const auto format = format_from_name(word)) return *format;
    std::string choices = "bf16";
    for (Format f : all_formats()) choices += fmt::format(", {}", format_name(f));
    return fail("unknown format '{}'; choices: {}", word, choices);
}

Result<int64_t> parse_size(std::string_view word) {
    double value = 0;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
    std::string unit;
    for (const char* c = end; c != word.data() + word.size(); ++c)
        unit += static_cast<char>(std::toupper(static_cast<unsigned char>(*c)));
    const double factor = unit.empty() || unit == "B" ? 1
                          : unit == "KB"              ? 1e3
                          : unit == "MB"              ? 1e6
                          : unit == "GB"              ? 1e9
                          : unit == "TB"              ? 1e12
                                                      : 0;
    if (error != std::errc{} || factor == 0 || !(value * factor >= 1) || value * factor > 9e18)
        return fail("'{}' is not a size; examples: 5GB, 500MB, 1000000", word);
    return static_cast<int64_t>(std::llround(value * factor));
}

std::string command_line_of(const CLI::App& command) {
    std::string text = "nibble " + command.get_name();
    for (const CLI::Option* option : command.get_options()) {
        if (option->count() == 0) continue;
        const bool positional = option->get_positional();
        if (!positional) text += " " + option->get_name(false, false);
        if (option->get_expected_min() == 0 && !positional) continue;  // a flag
        for (const std::string& value : option->results()) text += " " + value;
    }
    return text;
}

std::string to_text(const Manifest& m) {
    Json json{{"made_by", "nibble"}, {"version", NIBBLE_VERSION}, {"command", m.command_line}};
    if (!m.recipe.empty()) json["recipe"] = m.recipe;
    if (!m.settings.empty()) json["settings"] = m.settings;
    if (!m.tensors.empty()) json["tensors"] = m.tensors;
    return json.dump(1) + "\n";
}

}  // namespace nibble
