#include "cli/options.h"

#include "cli/usage.h"
#include "tensor/device.h"

#include <algorithm>
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
    double factor = unit.empty() || unit == "B" ? 1 : 0, decimal = 1, binary = 1;
    for (const char letter : {'K', 'M', 'G', 'T'}) {
        decimal *= 1e3, binary *= 1024;
        if (unit == std::string{letter, 'B'}) factor = decimal;
        if (unit == std::string(1, letter) || unit == std::string{letter, 'I', 'B'}) factor = binary;
    }
    if (error != std::errc{} || factor == 0 || !(value * factor >= 1) || value * factor > 9e18)
        return fail("'{}' is not a size; examples: 5GB, 500MB, 512M (of 1024 KiB), 1000000", word);
    return static_cast<int64_t>(std::llround(value * factor));
}

std::string quantized_text(const Checkpoint& checkpoint) {
    int64_t quantized = 0;
    std::string_view type;
    for (const CheckpointTensor& t : checkpoint.tensors()) {
        const auto stored = dtype_from_name(t.stored_type);
        if (!t.quantized() && (checkpoint.dialect() != Dialect::gguf || (stored && is_plain_float(*stored)))) continue;
        if (quantized++ == 0) type = t.stored_type;
    }
    if (quantized == 0) return {};
    return fmt::format("is quantized already ({} tensors, the first in {})", quantized, type);
}

std::string output_format(const std::string& out, const std::string& format) {
    const bool gguf = out.ends_with(".gguf");
    if (gguf && !format.empty() && format != "gguf")
        usage_error("-o {}: is a GGUF file's name, and --format {} writes a folder", out, format);
    if (!format.empty()) return format;
    return gguf ? "gguf" : "modelopt";
}

Status refuse_output_in_source(const std::filesystem::path& out, const std::filesystem::path& source) {
    namespace fs = std::filesystem;
    std::error_code error;
    if (!fs::is_directory(source, error)) return Ok{};
    const fs::path folder = fs::canonical(source, error), place = fs::weakly_canonical(fs::absolute(out, error), error);
    if (error) return Ok{};  // whatever is wrong with the names, opening them says it
    const fs::path relative = place.lexically_relative(folder);
    if (relative.empty() || *relative.begin() == "..") return Ok{};
    return fail("{}: lies in the source {}, and the next run would take it for a part of it; choose another output",
                out.string(), source.string());
}

std::string json_line(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n"; }

CLI::Option* add_threads_flag(CLI::App& command, int& threads, const std::string& what) {
    return command.add_option("--threads", threads, what)
        ->check([](const std::string& word) {
            return word.starts_with('-') ? fmt::format("{} is no number of threads", word) : std::string();
        })
        ->capture_default_str();
}

void add_device_flag(CLI::App& command, std::string& device, const std::string& what) {
    command.add_option("--device", device, what)->check(read_by(parse_device))->capture_default_str();
}

void add_quiet_flag(CLI::App& command, bool& quiet, const std::string& what) {
    command.add_flag("--quiet", quiet, what);
}

void add_json_flag(CLI::App& command, bool& json) { command.add_flag("--json", json, "machine-readable"); }

void add_shard_size_flag(CLI::App& command, std::string& size) {
    command.add_option("--max-shard-size", size, "of the safetensors files")
        ->check(read_by(parse_size))
        ->capture_default_str();
}

CLI::Option* add_kernels_flag(CLI::App& command, std::string& kernels, const std::string& what) {
    return command.add_option("--kernels", kernels, what)->check(one_of({"avx512", "avx2", "amx", "ref"}));
}

namespace {

template <class Leaves>
std::string command_without(const CLI::App& command, Leaves leaves) {
    std::string text = "nibble " + command.get_name();
    for (const CLI::Option* option : command.get_options()) {
        if (option->count() == 0 || leaves(option->get_name(false, false))) continue;
        const bool positional = option->get_positional();
        if (!positional) text += " " + option->get_name(false, false);
        if (option->get_expected_min() == 0 && !positional) continue;  // a flag
        for (const std::string& value : option->results()) text += " " + value;
    }
    return text;
}

}  // namespace

std::string command_line_of(const CLI::App& command) {
    return command_without(command, [](const std::string&) { return false; });
}

std::string command_for_card(const CLI::App& command) {
    return command_without(command, [](const std::string& name) {
        constexpr std::string_view speed[] = {"--resume", "--threads", "--kernels", "--quiet", "--json", "--profile"};
        return std::ranges::find(speed, name) != std::end(speed);
    });
}

std::string to_text(const Manifest& m) {
    Json json{{"made_by", "nibble"}, {"version", NIBBLE_VERSION}, {"command", m.command_line}};
    if (!m.recipe.empty()) json["recipe"] = m.recipe;
    if (!m.settings.empty()) json["settings"] = m.settings;
    if (!m.tensors.empty()) json["tensors"] = m.tensors;
    return json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";  // paths need not be UTF-8
}

}  // namespace nibble
