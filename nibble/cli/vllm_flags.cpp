#include "cli/vllm_flags.h"

#include "cli/usage.h"
#include "jobs/words.h"

#include <string>
#include <string_view>

namespace nibble {
namespace {

// The effect of these flags is always there, or there is nothing to allow.
constexpr const char* accepted_flags[]{"--trust-remote-code", "--enable-prefix-caching", "--enable-chunked-prefill",
                                       "--enable-auto-tool-choice"};

struct ValueFlag {
    const char* names;
    const char* neutral;  // the value that asks for what happens anyway; empty: there is none
    const char* next_step;
};

constexpr const char* one_copy =
    "a server has one copy of the model: start one server for each, and leave the flag out";
constexpr const char* of_one_model = "take a folder with the files, and leave the flag out";

constexpr ValueFlag value_flags[]{
    {"--data-parallel-size,--dp", "1", one_copy},
    {"--quantization", "", "the checkpoint states its quantization: leave the flag out; `nibble quantize` makes one"},
    {"--kv-cache-dtype", "auto", "the same is --kv: fp8 with the checkpoint's scales, fp8_cast without scales"},
    {"--load-format", "auto", of_one_model},
    {"--tokenizer", "", "the tokenizer is that of the model's folder: leave the flag out"},
    {"--revision", "", of_one_model},
    {"--download-dir", "", "nothing is downloaded: give a local folder as the model, and leave the flag out"},
    {"--chat-template", "", "the template is chat_template.jinja of the model's folder: replace that file"},
    {"--max-num-batched-tokens", "", "the rows of a step follow from --prompt-stretch: leave the flag out"},
    {"--block-size", "", "a page of the cache has 64 tokens: leave the flag out"},
    {"--swap-space", "0", "there is no swap space: leave the flag out; --kv-memory gives the cache its size"},
    {"--cpu-offload-gb", "0", "weights are not offloaded: leave the flag out, or run the model with --device cpu"},
    {"--model", "", "the model is the first argument: nibble serve MODEL"},
    {"--speculative-config", "", "the same is --speculate: mtp:N, or lookup:N in the text so far"},
    {"--lora-modules", "", "merge the adapter into the model first (transformers or PEFT: merge_and_unload)"},
    {"--allowed-origins", "", "the same is --cors-origin"},
    {"--ssl-keyfile", "", "use a reverse proxy with TLS"},
    {"--ssl-certfile", "", "use a reverse proxy with TLS"},
    {"--root-path", "", "let the proxy remove the prefix of the path"},
    {"--generation-config", "auto", "generation_config.json of the model's folder is used: leave the flag out"},
};

constexpr ValueFlag switches[]{
    {"--enforce-eager", "", "there is nothing to turn off: leave the flag out"},
    {"--enable-lora", "", "merge the adapter into the model first (transformers or PEFT: merge_and_unload)"},
    {"--disable-log-requests,--no-enable-log-requests", "", "--quiet leaves the log of requests out"},
    {"--disable-log-stats", "", "no statistics are logged: leave the flag out"},
};

// The first of the names.
std::string_view shown_name(const ValueFlag& flag) {
    const std::string_view names = flag.names;
    return names.substr(0, names.find(','));
}

void set_dtype(const std::string& word, ModelSettings& settings) {
    if (word == "auto") return;
    if (word == "bfloat16")
        settings.compute = "bf16";
    else if (word == "float32" || word == "float")
        settings.compute = "f32";
    else
        usage_error("--dtype {}: the same is --compute, bf16 or f32; weights run in the checkpoint's format", word);
}

}  // namespace

void add_vllm_flags(CLI::App& command, ServeOptions& options) {
    const auto hidden = [](CLI::Option* option) { option->group(""); };
    for (const char* name : accepted_flags) hidden(command.add_flag(name));
    for (const ValueFlag& flag : switches)
        hidden(command.add_flag_callback(flag.names,
                                         [&flag] { usage_error("{}: {}", shown_name(flag), flag.next_step); }));
    for (const ValueFlag& flag : value_flags)
        hidden(command.add_option_function<std::string>(flag.names, [&flag](const std::string& word) {
            if (!*flag.neutral || word != flag.neutral)
                usage_error("{} {}: {}", shown_name(flag), word, flag.next_step);
        }));
    hidden(command.add_option_function<std::string>(
        "--dtype", [&options](const std::string& word) { set_dtype(word, options.engine); }));
    hidden(command.add_option("--kv-cache-memory-bytes,--kv-cache-memory", options.cache.kv_memory)
               ->check(read_by(parse_size)));
    hidden(command.add_flag("--no-enable-prefix-caching", options.cache.no_prefix_cache));
}

}  // namespace nibble
