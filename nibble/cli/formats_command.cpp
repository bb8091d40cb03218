// `nibble formats`: explains number formats. The tables and the example block are computed by the functions that
// quantize models.
#include "cli/command.h"
#include "jobs/formats_json.h"
#include "jobs/formats_text.h"

#include <fmt/core.h>

#include <charconv>

namespace nibble {
namespace {

struct FormatsConfig {
    std::vector<std::string> words;
    std::optional<float> amax;
    bool true_division = false, json = false;
};

Result<std::vector<float>> parse_numbers(std::span<const std::string> words) {
    std::vector<float> numbers;
    for (const std::string& word : words) {
        float value = 0;
        const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
        if (error != std::errc{} || end != word.data() + word.size())
            return fail("'{}' is neither a format nor a number; formats: {}", word, format_choices());
        numbers.push_back(value);
    }
    return numbers;
}

Result<Json> answer_json(const FormatsConfig& config, bool named, std::span<const float> numbers,
                         Arithmetic arithmetic) {
    if (config.words.empty()) return overview_json();
    if (!named) return numbers_json(numbers);
    if (numbers.empty()) return format_json(config.words[0]);
    return quantized_json(config.words[0], numbers, arithmetic, config.amax);
}

Result<std::string> answer_text(const FormatsConfig& config, bool named, std::span<const float> numbers,
                                Arithmetic arithmetic) {
    if (config.words.empty()) return overview_text();
    if (!named) return numbers_text(numbers);
    if (numbers.empty()) return format_text(config.words[0]);
    return quantized_text(config.words[0], numbers, arithmetic, config.amax);
}

Result<Outcome> run_formats(const FormatsConfig& config) {
    const bool named = !config.words.empty() && is_format_name(config.words[0]);
    if (config.amax && (!named || config.words.size() < 2))
        return fail("--amax needs a format and the numbers of a block: nibble formats nvfp4 0.1 -3 --amax 8");
    NIBBLE_TRY(const auto numbers, parse_numbers(std::span(config.words).subspan(named ? 1 : 0)));
    const Arithmetic arithmetic = config.true_division ? Arithmetic::true_division : Arithmetic::reciprocal;
    if (config.json) {
        NIBBLE_TRY(const Json json, answer_json(config, named, numbers, arithmetic));
        fmt::print("{}\n", json.dump(2));
        return Outcome{};
    }
    NIBBLE_TRY(const std::string text, answer_text(config, named, numbers, arithmetic));
    fmt::print("{}", text);
    return Outcome{};
}

}  // namespace

void add_formats(CLI::App& app, RunCommand& run) {
    auto config = std::make_shared<FormatsConfig>();
    CLI::App* command = app.add_subcommand("formats", "explain number formats: values, bits, rounding, blocks");
    command->add_option("words", config->words, "[FORMAT] [NUMBER ...]; nothing: an overview");
    command->add_flag(
        "--true-division", config->true_division,
        "compute scales by division as Model Optimizer on a CPU (default: by multiplication, as on a GPU)");
    command->add_option("--amax", config->amax,
                        "largest magnitude of the tensor that contains the block (nvfp4, nvfp4_bs32, fp8)");
    command->add_flag("--json", config->json, "machine-readable");
    command->positionals_at_end(false);
    command->allow_extras(false);
    command->footer(
        "Examples:\n"
        "  nibble formats                        all formats side by side\n"
        "  nibble formats e4m3                   every value of E4M3\n"
        "  nibble formats 0.1 -3                 the bits of numbers in every element format\n"
        "  nibble formats nvfp4 0.1 -3 0.02      one block, quantized step by step, also with four over six\n"
        "  nibble formats nvfp4 0.1 -3 --amax 8  the same block in a larger tensor: its scale is rounded to E4M3");
    command->callback([config, &run] { run = [config] { return run_formats(*config); }; });
}

}  // namespace nibble
