#include "cli/engine.h"

#include "architecture/shards.h"
#include "cli/options.h"
#include "cli/usage.h"
#include "cli/version.h"
#include "jobs/join_ranks.h"

namespace nibble {

void add_engine_flags(CLI::App& command, ModelSettings& settings, bool& quiet) {
    command.add_option("--compute", settings.compute, "precision of values between operators: bf16 (rounded) or f32")
        ->check(one_of({"bf16", "f32"}))
        ->capture_default_str();
    command.add_option("--kv", settings.kv, "format of the KV cache; default: the checkpoint's")
        ->check(one_of({"bf16", "fp8", "fp8_cast", "fp8_page", "nvfp4", "nvfp4_cast"}));
    command
        .add_option("--ssm-state", settings.ssm_state,
                    "format of Mamba-2 states between tokens: f32, bf16, fp16, fp16_stochastic (random rounding)")
        ->check(one_of({"f32", "bf16", "fp16", "fp16_stochastic"}))
        ->capture_default_str();
    command.add_flag("--weights-only", settings.weights_only, "leave activations unquantized (W4A16, W8A16)");
    add_device_flag(command, settings.device);
    add_threads_flag(command, settings.threads);
    add_kernels_flag(command, settings.kernels, "CPU kernels (with --sums tiles: amx or ref); do not change any bit");
    add_sums_flag(command, settings.sums);
    add_quiet_flag(command, quiet, "no progress and no notes");
}

void add_engine_flags(CLI::App& command, EngineFlags& flags) { add_engine_flags(command, flags, flags.quiet); }

void add_parallel_flags(CLI::App& command, ModelSettings& settings) {
    command
        .add_option("--tensor-parallel-size,--tp", settings.tensor_parallel_size,
                    "ranks that run the model together, each with a part of the weights: processes of a launcher, or "
                    "threads of this one; does not change any bit")
        ->check(CLI::Range(1, most_ranks))
        ->capture_default_str();
    command.add_flag("--enable-expert-parallel")->description("accepted: ranks always have whole experts");
    add_refused_degree(command, "--pipeline-parallel-size,--pp",
                       "layers are not divided among ranks: take --tensor-parallel-size, on several hosts, too");
}

void add_refused_degree(CLI::App& command, const std::string& names, const std::string& next_step) {
    const auto refuse = [name = names.substr(0, names.find(',')), next_step](const std::string& word) {
        if (word != "1") usage_error("{} {}: {}", name, word, next_step);
    };
    command.add_option_function<std::string>(names, refuse)->group("");
}

Result<bool> joined(ModelSettings& settings, const JobHooks& hooks) {
    return join_ranks(settings, version_text(), hooks);
}

Status ranks_alive(const ModelSettings& settings) {
    return settings.team ? settings.team->ranks().alive() : Status(Ok{});
}

CLI::Option* add_sums_flag(CLI::App& command, std::string& sums) {
    return command
        .add_option("--sums", sums,
                    "order of sums in products: lanes, the same bits on every CPU, or tiles, Intel's AMX: faster for "
                    "prompts and batches, the last bits differ")
        ->check(one_of({"lanes", "tiles"}))
        ->capture_default_str();
}

void add_sampling_flags(CLI::App& command, SamplingSettings& flags) {
    command.add_option("--temperature", flags.temperature,
                       "0: always the most likely token; default: generation_config.json's, else 0.7");
    command.add_option("--top-k", flags.top_k, "sample from this many most likely tokens; 0: off");
    command.add_option(
        "--top-p", flags.top_p,
        "sample from the most likely tokens with this total probability; default: generation_config.json's, else 0.95");
    command.add_option("--min-p", flags.min_p, "least probability of sampled tokens, relative to the most likely one");
    command.add_option("--repetition-penalty", flags.repetition_penalty, "1: off");
    command.add_option("--presence-penalty", flags.presence_penalty, "0: off");
    command.add_option("--frequency-penalty", flags.frequency_penalty, "0: off");
    command.add_option("--seed", flags.seed, "the same seed gives the same answer")->capture_default_str();
    command.add_option("--max-tokens", flags.max_tokens, "most tokens of an answer")
        ->check(CLI::Range(int64_t{1}, int64_t{1} << 40))
        ->capture_default_str();
    command.add_option("--stop", flags.stop, "a text that ends the answer; may be given several times")
        ->allow_extra_args(false);
}

void add_cache_flags(CLI::App& command, CacheSettings& flags) {
    command
        .add_option("--kv-memory", flags.kv_memory,
                    "memory for keys, values and states: 512M, 4GB, or bytes; default: see --gpu-memory-utilization")
        ->check(read_by(parse_size));
    command
        .add_option("--gpu-memory-utilization", flags.memory_share,
                    "share of the device's free memory for keys, values and states; on a CPU, of a third of the host's "
                    "free memory")
        ->check(CLI::Range(0.01, 1.0))
        ->capture_default_str();
    command
        .add_option("--speculate", flags.speculate,
                    "draft tokens: none, lookup[:N] (from the text so far), mtp[:N] (by layers for multi-token "
                    "prediction); does not change the answer")
        ->check(read_by(parse_speculation))
        ->capture_default_str();
    command.add_flag("--no-prefix-cache", flags.no_prefix_cache,
                     "do not reuse the computation of shared prompt prefixes");
}

}  // namespace nibble
