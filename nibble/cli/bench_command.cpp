// `nibble bench WHAT`: checks results first, then measures times.
#include "cli/bench_serve.h"
#include "cli/bench_subject.h"
#include "cli/command.h"
#include "cli/engine.h"
#include "cli/options.h"
#include "gpu_bench/kernels.h"
#include "measure/matmul.h"
#include "measure/model.h"
#include "measure/quantize.h"
#include "measure/throughput.h"

namespace nibble {
namespace {

void add_bench_model(CLI::App& bench, RunCommand& run) {
    auto config = std::make_shared<BenchModelOptions>();
    CLI::App* command = bench.add_subcommand("model", "measure loading, prefill and decoding of a model");
    add_subject_flags(*command, "PATH", config->subject);
    add_device_flag(*command, config->device);
    command->add_option("--prompt", config->prompt, "tokens in the prefill")->check(CLI::Range(1, 1 << 20));
    command->add_option("--decode", config->decode, "number of tokens to decode one by one")
        ->check(CLI::Range(1, 1 << 20));
    command->add_option("--context", config->context, "tokens in the context before decoding; default 0")
        ->check(CLI::Range(0, 1 << 20));
    command->add_option("--sequences", config->sequences, "number of sequences that are decoded together")
        ->check(CLI::Range(1, 4096));
    add_threads_flag(*command, config->threads);
    add_kernels_flag(*command, config->kernel, "kernels; with --sums tiles: amx or ref; default: the best of this CPU");
    add_sums_flag(*command, config->sums);
    command->add_flag("--f32", config->f32, "compute in FP32, not BF16");
    command->add_flag("--weights-only", config->weights_only, "leave inputs unquantized (W4A16, W8A16)");
    command->add_option("--repetitions", config->repetitions, "repetitions; the median is reported")
        ->check(CLI::Range(1, 1000));
    add_json_flag(*command, config->json);
    command->footer("Example:\n  nibble bench model model-NVFP4 --threads 2");
    command->callback([config, &run] {
        check_subject("PATH", config->subject);
        run = [config]() -> Result<Outcome> {
            NIBBLE_CHECK(bench_model(*config, stdout));
            return Outcome{};
        };
    });
}

void add_bench_throughput(CLI::App& bench, RunCommand& run) {
    auto config = std::make_shared<BenchThroughputOptions>();
    CLI::App* command = bench.add_subcommand("throughput", "measure the serving engine without HTTP");
    add_subject_flags(*command, "MODEL", config->subject);
    command
        ->add_option("--isl", config->input,
                     "tokens per prompt; several values, with as many of --osl, run one load each")
        ->check(CLI::Range(1, 1 << 20))
        ->allow_extra_args(false)
        ->capture_default_str();
    command->add_option("--osl", config->output, "tokens per answer")
        ->check(CLI::Range(1, 1 << 20))
        ->allow_extra_args(false)
        ->capture_default_str();
    command
        ->add_option("--repeat", config->period,
                     "length of a repeated piece of each prompt, in tokens; default: prompts do not repeat")
        ->check(CLI::Range(1, 1 << 20));
    command
        ->add_option("--masked", config->masked,
                     "share of requests with a token mask that the host computes for every token, as for a grammar")
        ->check(CLI::Range(0.0, 1.0));
    command->add_option("--biased", config->biased, "share of requests with a logit_bias")->check(CLI::Range(0.0, 1.0));
    command->add_option("--requests", config->requests, "requests queued at once; default: twice --sequences")
        ->check(CLI::Range(1, 1 << 20));
    command->add_option("--sequences", config->sequences, "most requests that run together; default: 64 on a CPU, 1024")
        ->check(CLI::Range(1, 4096));
    command->add_option("--step-rows", config->step_rows, "most tokens per step; default: 512 on a CPU, 8192")
        ->check(CLI::Range(1, 1 << 20));
    command
        ->add_option("--mixed-rows", config->mixed_rows,
                     "most prompt tokens in a step with running answers; default: an eighth of --step-rows")
        ->check(CLI::Range(1, 1 << 20));
    add_cache_flags(*command, config->cache);
    add_engine_flags(*command, config->engine, config->quiet);
    add_json_flag(*command, config->json);
    command->footer(
        "Example:\n  nibble bench throughput model-NVFP4 --isl 128 --osl 64 --requests 32\n"
        "  nibble bench throughput --shape llama-8b --format fp8 --kv fp8_cast --device cuda --isl 1000 --osl 1000");
    command->callback([config, &run] {
        check_subject("MODEL", config->subject);
        if (config->input.size() != config->output.size())
            throw CLI::ValidationError("--isl and --osl need the same number of values");
        run = [config]() -> Result<Outcome> {
            NIBBLE_CHECK(bench_throughput(*config, stdout));
            return Outcome{};
        };
    });
}

void add_bench_matmul(CLI::App& bench, RunCommand& run) {
    auto config = std::make_shared<BenchMatmulOptions>();
    auto gpu = std::make_shared<bench::KernelBench>();
    CLI::App* command = bench.add_subcommand(
        "matmul", "measure products of one and of many rows, and compare them with memory and arithmetic limits");
    add_device_flag(*command, config->device);
    const CLI::Option* cpu_only[] = {
        command->add_option("--shapes", config->shapes, "CPU: smollm2, llama or all")->capture_default_str(),
        command->add_option("--rows", config->rows, "CPU: rows of a prefill")->capture_default_str(),
        command
            ->add_option("--megabytes", config->megabytes,
                         "CPU: megabytes of different weights that a decoding step reads in sequence")
            ->capture_default_str(),
        add_threads_flag(*command, config->threads, "CPU: 0: all cores"),
        add_kernels_flag(*command, config->kernel,
                         "CPU: kernels; with --sums tiles: amx or ref; default: all except ref"),
        add_sums_flag(*command, config->sums)};
    command->add_option("--format", config->format,
                        "formats of weights, or weights+inputs such as nvfp4+nvfp4; default: all");
    command->add_option("--shape", gpu->shapes,
                        "GPU: size NxK of the weights; default: sizes of the performance targets");
    command->add_option("--m", gpu->tokens, "GPU: number of tokens (rows); default: those of the performance targets");
    command->add_option("--repetitions", config->repetitions, "repetitions; the median is reported")
        ->check(CLI::Range(1, 1000))
        ->capture_default_str();
    add_json_flag(*command, config->json);
    command->footer(
        "Example:\n  nibble bench matmul --format nvfp4 --kernels avx512\n"
        "  nibble bench matmul --device cuda --shape 8192x8192 --m 1 --m 64");
    command->callback([config, gpu, cpu_only = std::vector(std::begin(cpu_only), std::end(cpu_only)), &run] {
        const bool on_cpu = config->device == "cpu";
        if (on_cpu && !(gpu->shapes.empty() && gpu->tokens.empty()))
            throw CLI::ValidationError("--shape and --m need --device cuda; on the CPU use --shapes and --rows");
        for (const CLI::Option* option : cpu_only)
            if (!on_cpu && option->count() > 0)
                throw CLI::ValidationError(option->get_name() +
                                           " applies to the CPU; with --device cuda use --shape and --m");
        run = [config, gpu, on_cpu]() -> Result<Outcome> {
            gpu->device = config->device, gpu->format = config->format;
            gpu->repetitions = config->repetitions, gpu->json = config->json;
            NIBBLE_CHECK(on_cpu ? bench_matmul(*config, stdout) : bench::run_kernel_bench(*gpu, stdout));
            return Outcome{};
        };
    });
}

void add_bench_quantize(CLI::App& bench, RunCommand& run) {
    auto config = std::make_shared<BenchQuantizeOptions>();
    CLI::App* command = bench.add_subcommand(
        "quantize", "measure the quantize, decode and error kernels, and compare them with memcpy");
    command->add_option("--rows", config->rows, "rows of the matrix")->capture_default_str();
    command->add_option("--cols", config->cols, "columns of the matrix")->capture_default_str();
    add_device_flag(*command, config->device, "cpu, cuda or cuda:N; on a GPU the sizes are fixed");
    add_threads_flag(*command, config->threads);
    add_kernels_flag(*command, config->kernel, "kernels; default: all that this CPU supports");
    command->add_option("--repetitions", config->repetitions, "repetitions; the median is reported")
        ->capture_default_str();
    add_json_flag(*command, config->json);
    command->footer("Example:\n  nibble bench quantize --kernels avx2");
    command->callback([config, &run] {
        run = [config]() -> Result<Outcome> {
            NIBBLE_CHECK(bench_quantize(*config, stdout));
            return Outcome{};
        };
    });
}

}  // namespace

void add_bench(CLI::App& app, RunCommand& run) {
    CLI::App* bench = app.add_subcommand(
        "bench", "measure the speed of kernels, models and servers; results are first compared with the reference");
    bench->require_subcommand(1);
    add_bench_matmul(*bench, run);
    add_bench_model(*bench, run);
    add_bench_serve(*bench, run);
    add_bench_throughput(*bench, run);
    add_bench_quantize(*bench, run);
}

}  // namespace nibble
