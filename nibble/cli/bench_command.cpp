// `nibble bench WHAT`: checks first, then times.
#include "cli/bench_quantize.h"
#include "cli/command.h"

namespace nibble {

void add_bench(CLI::App& app, RunCommand& run) {
    CLI::App* bench =
        app.add_subcommand("bench", "speed of the kernels on this machine, checked against the reference first");
    bench->require_subcommand(1);
    auto config = std::make_shared<BenchQuantizeOptions>();
    CLI::App* command = bench->add_subcommand("quantize", "quantize, decode and measure kernels beside memcpy");
    command->add_option("--rows", config->rows, "of the matrix")->capture_default_str();
    command->add_option("--cols", config->cols, "of the matrix")->capture_default_str();
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
