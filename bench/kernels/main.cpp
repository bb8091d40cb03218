// bench_kernels attention|experts|fused-decode|delta [--device cuda:N] [--shape SHAPE] [--m TOKENS] [--repetitions N]
// [--json]: checks a GPU's kernels against double precision, then times them (nibble/gpu_bench/kernels.h). `nibble
// bench matmul --device cuda` and `nibble bench quantize --device cuda` do the same for products and casts.
#include "gpu_bench/kernels.h"

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <map>

using nibble::bench::KernelBench;

int main(int argc, char** argv) {
    using Kernels = KernelBench::Kernels;
    const std::map<std::string, Kernels> names{{"attention", Kernels::attention},
                                               {"experts", Kernels::experts},
                                               {"fused-decode", Kernels::fused_decode},
                                               {"delta", Kernels::delta}};
    KernelBench bench;
    bench.kernels = Kernels::attention;
    CLI::App app("checks and times kernels of a GPU");
    app.add_option("kernels", bench.kernels,
                   "attention (decode, prefill, backward), experts, fused-decode, or delta (gated delta nets)")
        ->required()
        ->transform(CLI::CheckedTransformer(names));
    app.add_option("--device", bench.device, "cuda or cuda:N")->capture_default_str();
    app.add_option("--shape", bench.shapes, "attention: SEQUENCESxTOKENS to decode; experts: NxK of the weights");
    app.add_option("--m", bench.tokens, "experts: tokens together");
    app.add_option("--repetitions", bench.repetitions, "medians over this many")
        ->check(CLI::Range(1, 1000))
        ->capture_default_str();
    app.add_flag("--json", bench.json, "machine-readable");
    CLI11_PARSE(app, argc, argv);
    const nibble::Status ran = nibble::bench::run_kernel_bench(bench, stdout);
    if (!ran.ok()) fmt::print(stderr, "bench_kernels: {}\n", ran.error().message());
    return ran.ok() ? 0 : 1;
}
