// `nibble bench WHAT`: checks first, then times.
#include "cli/bench_matmul.h"
#include "cli/bench_model.h"
#include "cli/bench_quantize.h"
#include "cli/command.h"

namespace nibble {
namespace {

void add_bench_model(CLI::App& bench, RunCommand& run) {
    auto config = std::make_shared<BenchModelOptions>();
    CLI::App* command = bench.add_subcommand("model", "loading, prefill and decoding of a model");
    CLI::Option* path = command->add_option("PATH", config->path, "folder or .gguf");
    CLI::Option* shape =
        command
            ->add_option("--shape", config->shape,
                         "random weights in the shape of smollm2-135m, llama-8b, qwen3-30b-a3b or nemotron-3-nano")
            ->excludes(path);
    command->add_option("--format", config->format, "of the linears of a --shape: bf16, fp8, nvfp4 ...")
        ->capture_default_str();
    command->add_option("--layers", config->layers, "of a --shape; default: all")->check(CLI::Range(1, 1000));
    command->add_option("--device", config->device, "cpu, cuda or cuda:N")->capture_default_str();
    command->add_option("--prompt", config->prompt, "tokens of the prefill")->check(CLI::Range(1, 1 << 20));
    command->add_option("--decode", config->decode, "tokens decoded one by one")->check(CLI::Range(1, 1 << 20));
    command->add_option("--context", config->context, "tokens before the decoded ones; default 0")
        ->check(CLI::Range(0, 1 << 20));
    command->add_option("--sequences", config->sequences, "decoded together")->check(CLI::Range(1, 4096));
    command->add_option("--threads", config->threads, "0: all cores")->capture_default_str();
    command->add_option("--kernel", config->kernel, "one of avx512, avx2, ref; default: the best of this CPU");
    command->add_flag("--f32", config->f32, "compute in FP32, not BF16");
    command->add_flag("--weights-only", config->weights_only, "leave inputs unquantized (W4A16, W8A16)");
    command->add_option("--repetitions", config->repetitions, "medians over this many")->check(CLI::Range(1, 1000));
    command->add_flag("--json", config->json, "machine-readable");
    command->footer("Example:\n  nibble bench model model-NVFP4 --threads 2");
    command->callback([config, path, shape, &run] {
        if (path->count() + shape->count() == 0) throw CLI::RequiredError("PATH or --shape");
        run = [config]() -> Result<Outcome> {
            NIBBLE_CHECK(bench_model(*config, stdout));
            return Outcome{};
        };
    });
}

void add_bench_matmul(CLI::App& bench, RunCommand& run) {
    auto config = std::make_shared<BenchMatmulOptions>();
    CLI::App* command =
        bench.add_subcommand("matmul", "products of one row and of many beside memory and multiply-add limits");
    command->add_option("--shapes", config->shapes, "smollm2, llama or all")->capture_default_str();
    command->add_option("--format", config->format, "weights or weights+inputs, as nvfp4+nvfp4; default: all");
    command->add_option("--rows", config->rows, "of a prefill")->capture_default_str();
    command->add_option("--megabytes", config->megabytes, "of weights behind one another in a decoding step")
        ->capture_default_str();
    command->add_option("--threads", config->threads, "0: all cores")->capture_default_str();
    command->add_option("--kernel", config->kernel,
                        "one of avx512, avx2, ref; default: avx512 and avx2 where supported");
    command->add_option("--repetitions", config->repetitions, "medians over this many")->capture_default_str();
    command->add_flag("--json", config->json, "machine-readable");
    command->footer("Example:\n  nibble bench matmul --format nvfp4 --kernel avx512");
    command->callback([config, &run] {
        run = [config]() -> Result<Outcome> {
            NIBBLE_CHECK(bench_matmul(*config, stdout));
            return Outcome{};
        };
    });
}

}  // namespace

void add_bench(CLI::App& app, RunCommand& run) {
    CLI::App* bench =
        app.add_subcommand("bench", "speed of the kernels on this machine, checked against the reference first");
    bench->require_subcommand(1);
    add_bench_matmul(*bench, run);
    add_bench_model(*bench, run);
    auto config = std::make_shared<BenchQuantizeOptions>();
    CLI::App* command = bench->add_subcommand("quantize", "quantize, decode and measure kernels beside memcpy");
    command->add_option("--rows", config->rows, "of the matrix")->capture_default_str();
    command->add_option("--cols", config->cols, "of the matrix")->capture_default_str();
    command->add_option("--device", config->device, "cpu, cuda or cuda:N; a GPU's kernels come with sizes of their own")
        ->capture_default_str();
    command->add_option("--threads", config->threads, "0: all cores")->capture_default_str();
    command->add_option("--kernel", config->kernel, "one of avx512, avx2, ref; default: every one this CPU supports");
    command->add_option("--repetitions", config->repetitions, "medians over this many")->capture_default_str();
    command->add_flag("--json", config->json, "machine-readable");
    command->footer("Example:\n  nibble bench quantize --kernel avx2");
    command->callback([config, &run] {
        run = [config]() -> Result<Outcome> {
            NIBBLE_CHECK(bench_quantize(*config, stdout));
            return Outcome{};
        };
    });
}

}  // namespace nibble
