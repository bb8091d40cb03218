#include "cli/options.h"

#include "cli/usage.h"
#include "tensor/device.h"

#include <algorithm>

namespace nibble {

std::string output_format(const std::string& out, const std::string& format) {
    const bool gguf = out.ends_with(".gguf");
    if (gguf && !format.empty() && format != "gguf")
        usage_error("-o {}: the name is that of a GGUF file, but --format {} writes a folder", out, format);
    if (!format.empty()) return format;
    return gguf ? "gguf" : "modelopt";
}

std::string json_line(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n"; }

CLI::Option* add_threads_flag(CLI::App& command, int& threads, const std::string& what) {
    return command.add_option("--threads", threads, what)
        ->check([](const std::string& word) {
            return word.starts_with('-') ? fmt::format("{} is not a number of threads", word) : std::string();
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

void add_partial_flag(CLI::App& command, bool& partial) {
    command.add_flag("--partial", partial, "take a checkpoint that lacks weights which its config.json requires");
}

void add_shard_size_flag(CLI::App& command, std::string& size) {
    command.add_option("--max-shard-size", size, "largest size of a safetensors file")
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
        if (option->get_expected_min() == 0 && !positional) continue;  // the option is a flag without value
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
        constexpr std::string_view speed[] = {"--resume", "--threads", "--kernels",     "--quiet",
                                              "--json",   "--profile", "--rank-timeout"};
        return std::ranges::find(speed, name) != std::end(speed);
    });
}

}  // namespace nibble
