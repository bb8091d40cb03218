// gpu_matmul: checks the W4A16 products, then times them against the bytes they read and against cuBLAS in BF16.
#include "bench/graph_time.h"
#include "bench/machine.h"
#include "cli/bench_device_data.h"
#include "device/program.h"
#include "kernels/matmul_cuda.h"
#include "matmul/check.h"

#include <algorithm>
#include <cstdio>

namespace nibble::bench {
namespace {

struct Config {
    int copies = 24, repeats = 15;
    std::vector<int64_t> batches{1, 2, 4, 8, 16, 32, 64, 128, 256};
    std::vector<std::string> shapes{"8192x8192", "4096x4096", "14336x4096", "4096x14336"};
    bool tilings = false;
};

Status time_shape(int64_t n, int64_t k, const Stream& stream, const DeviceInfo& device, DeviceArena& arena,
                  const Vendor& vendor, const Config& config, Report& report) {
    const DeviceArena::Mark mark = arena.mark();
    const int64_t packed = cuda::packed_bytes(n, k), most = config.batches.back();
    NIBBLE_TRY(std::byte * records, arena.allocate(packed * config.copies));
    NIBBLE_TRY(std::byte * x, arena.allocate(most * k * 2));
    NIBBLE_TRY(float* y, arena.allocate_array<float>(most * n));
    NIBBLE_TRY(std::byte * plain, arena.allocate(vendor.library ? n * k * 2 * config.copies : 256));
    NIBBLE_TRY(float* scale, arena.allocate_array<float>(1));
    const Matrix tokens = make_data(Data::bell, DType::bf16, 256, k, 1),
                 weights = make_data(Data::bell, DType::bf16, n, k, 2);
    const float tensor_scale = 1e-4f;
    NIBBLE_CHECK(copy_to_device(reinterpret_cast<std::byte*>(scale), reinterpret_cast<const std::byte*>(&tensor_scale),
                                4, stream));
    for (int64_t t = 0; t < most; t += 256)
        NIBBLE_CHECK(
            copy_to_device(x + t * k * 2, tokens.data.data(), std::min<int64_t>(256, most - t) * k * 2, stream));
    // Any bytes are valid records: all codes, scales of 2^-8 ... 2^22.
    for (int c = 0; c < config.copies; ++c)
        NIBBLE_CHECK(copy_to_device(records + c * packed, weights.data.data() + c * 64, packed, stream));
    if (vendor.library)
        for (int c = 0; c < config.copies; ++c)
            NIBBLE_CHECK(c ? copy_on_device(plain + c * n * k * 2, plain, n * k * 2, stream)
                           : copy_to_device(plain, weights.data.data(), n * k * 2, stream));
    NIBBLE_CHECK(stream.synchronize());
    for (const int64_t m : config.batches) {
        const GraphTiming timing{m > 512  ? config.copies / 4 + 1
                                 : m > 64 ? config.copies
                                          : 4 * config.copies,
                                 config.repeats};
        double base = 0;
        if (vendor.library) {
            const DeviceArena::Mark inner = arena.mark();
            NIBBLE_TRY(const auto theirs, cuda::plan_vendor_product(vendor.library, {.m = m, .n = n, .k = k}));
            NIBBLE_TRY(std::byte * workspace, arena.allocate(theirs.workspace_bytes));
            NIBBLE_TRY(base, graph_time(stream, timing, [&](int i) {
                           return cuda::vendor_product(theirs, x, plain + i % config.copies * n * k * 2, y, workspace,
                                                       stream);
                       }));
            arena.release(inner);
        }
        NIBBLE_TRY(const auto chosen, cuda::plan_matmul({.m = m, .n = n, .k = k}, device));
        std::vector<cuda::MatmulTiling> tilings{{}};
        if (chosen.tiling.tokens && config.tilings)
            for (cuda::MatmulTiling t : matmul_tilings()) {
                const bool prefill = t.tokens >= 64;  // any number of thread blocks
                if (t.tokens != chosen.tiling.tokens && !(m > 64 && prefill)) continue;
                for (t.parts = 1; t.parts <= t.most_parts(); t.parts *= 2)
                    if (const int64_t blocks = t.parts * ((n + 64 * t.row_blocks - 1) / (64 * t.row_blocks)) *
                                               ((m + t.tokens - 1) / t.tokens);
                        blocks >= 64 && (prefill || blocks <= 264 || t.parts == 1))
                        tilings.push_back(t);
            }
        for (const cuda::MatmulTiling& t : tilings) {
            NIBBLE_TRY(const auto plan, cuda::plan_matmul({.m = m, .n = n, .k = k}, device, t));
            const DeviceArena::Mark inner = arena.mark();
            NIBBLE_TRY(std::byte * workspace, arena.allocate(plan.workspace_bytes));
            NIBBLE_TRY(std::byte * permuted, arena.allocate(plan.permuted_bytes));
            NIBBLE_CHECK(fill_device(workspace, 0, plan.workspace_bytes, stream));
            double us[3] = {};
            if (plan.permuted_bytes) {
                NIBBLE_TRY(us[2], graph_time(stream, timing,
                                             [&](int) { return cuda::permute(plan, x, permuted, {true}, stream); }));
            }
            for (const bool overlap : {false, true}) {
                NIBBLE_TRY(us[overlap], graph_time(stream, timing, [&](int i) {
                               const int c = i % config.copies;
                               return cuda::matmul(plan, plan.permuted_bytes ? permuted : x,
                                                   {n, k, records + c * packed}, {.tensor_scale = scale}, y, workspace,
                                                   {overlap}, stream);
                           }));
            }
            arena.release(inner);
            const double bytes = static_cast<double>(packed + m * (k * 2 + n * 4)), best = std::min(us[0], us[1]);
            const double operations = 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
            fmt::print(
                "{:>6}x{:<6} m {:>4} {:>8.2f} us overlap {:>8.2f} us {:>5.2f} TB/s {:>4.0f} TF  cuBLASLt BF16 "
                "{:>8.2f} us {:>5.2f}x  permute {:>6.2f}   {}\n",
                n, k, m, us[0], us[1], bytes / best * 1e-6, operations / best * 1e-6, base, base / best, us[2],
                plan.tiling.tokens ? fmt::format("{}/{}/{}/{}{}", plan.tiling.tokens, plan.tiling.row_blocks,
                                                 plan.tiling.k_parts, plan.tiling.parts, t.tokens ? "" : " *")
                                   : fmt::format("split {}, {} tiles, {} chunks, {} tokens", plan.split, plan.tiles,
                                                 plan.chunks_per_warp, plan.tokens_per_pass));
            std::fflush(stdout);
            report.timing(
                {{"n", n},
                 {"k", k},
                 {"m", m},
                 {"us", us[0]},
                 {"us_overlap", us[1]},
                 {"us_permute", us[2]},
                 {"us_cublas_bf16", base},
                 {"tb_per_second", bytes / best * 1e-6},
                 {"tflops", operations / best * 1e-6},
                 {"chosen", t.tokens == 0},
                 {"tiling", {plan.tiling.tokens, plan.tiling.row_blocks, plan.tiling.k_parts, plan.tiling.parts}}});
        }
    }
    arena.release(mark);
    return Ok{};
}

Status time_all(const Config& config, Run& run) {
    const Vendor vendor = Vendor::open(run.kit.device);
    if (!vendor.library) fmt::print("no baseline: {}\n", vendor.missing);
    for (const std::string& shape : config.shapes) {
        long n = 0, k = 0;
        if (std::sscanf(shape.c_str(), "%ldx%ld", &n, &k) != 2) return fail("--shape {}: expected NxK", shape);
        NIBBLE_CHECK(time_shape(n, k, run.kit.stream, run.kit.device, run.kit.arena, vendor, config, run.report));
    }
    return Ok{};
}

}  // namespace
}  // namespace nibble::bench

int main(int argc, char** argv) {
    using namespace nibble::bench;
    ProgramOptions options;
    Config config;
    CLI::App app{"Checks and times the W4A16 matrix products"};
    options.add_to(app, "small shapes only");
    app.add_option("--copies", config.copies, "of the weights that a timed run goes through")->check(CLI::Range(1, 64));
    app.add_option("--repeats", config.repeats, "timed runs")->check(CLI::Range(1, 1000));
    app.add_option("--m", config.batches, "tokens to time, ascending");
    app.add_option("--shape", config.shapes, "NxK to time");
    app.add_flag("--tilings", config.tilings, "time every tiling, not only the chosen one");
    CLI11_PARSE(app, argc, argv);
    return run_program(
        "gpu_matmul", options,
        [&](Run& run) {
            run.show("products",
                     check_matmul(run.kit.stream, run.kit.device, run.kit.arena, options.seed, options.small));
        },
        [&](Run& run) { return time_all(config, run); });
}
