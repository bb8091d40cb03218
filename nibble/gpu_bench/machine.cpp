#include "gpu_bench/machine.h"

#include "gpu_bench/graph_time.h"
#include "gpu_bench/product_kernels.h"

namespace nibble::bench {

Vendor Vendor::open(const DeviceInfo& device) {
    auto library = cuda::open_vendor(device);
    if (!library) return {nullptr, library.error().message()};
    return {std::move(*library), {}};
}

namespace {

// Returns the operations per second of one kind of product.
Result<double> peak(Kit& kit, const ProductNoise& noise, std::string_view name, const Vendor& vendor) {
    constexpr int64_t side = 8192;
    const DeviceArena::Mark mark = kit.arena.mark();
    const auto kernel = make_product_kernel(name, kit, noise, vendor);
    NIBBLE_CHECK(kernel->load(side, side));
    NIBBLE_TRY(const bool works, kernel->start(side));
    if (!works) return fail("{} has no kernel for {} x {} x {}", name, side, side, side);
    NIBBLE_TRY(const GraphTime time, time_graph(kit.stream, {4, 15}, [&](int i) { return kernel->queue(i); }));
    kit.arena.release(mark);
    return 2.0 * side * side * side / time.least * 1e6;
}

// Not measured in a graph, because the driver copies differently there: 2.8 instead of 4.2 TB/s on an H200.
Result<double> copy_rate(Kit& kit) {
    const DeviceArena::Mark mark = kit.arena.mark();
    constexpr int64_t bytes = int64_t{2} << 30;
    constexpr int together = 4;
    NIBBLE_TRY(std::byte * from, kit.arena.allocate(bytes));
    NIBBLE_TRY(std::byte * to, kit.arena.allocate(bytes));
    NIBBLE_CHECK(fill_device(from, 0x5A, bytes, kit.stream));
    NIBBLE_TRY(Event begin, Event::create());
    NIBBLE_TRY(Event end, Event::create());
    double least = 0;
    for (int r = 0; r < 9; ++r) {
        NIBBLE_CHECK(begin.record(kit.stream));
        for (int i = 0; i < together; ++i) NIBBLE_CHECK(copy_on_device(to, from, bytes, kit.stream));
        NIBBLE_CHECK(end.record(kit.stream));
        NIBBLE_CHECK(end.synchronize());
        NIBBLE_TRY(const float ms, end.since(begin));
        least = r == 0 ? ms : std::min<double>(least, ms);
    }
    kit.arena.release(mark);
    return 2.0 * bytes * together / least * 1e3;
}

}  // namespace

Result<MachineRates> measure_machine(Kit& kit, const Vendor& vendor) {
    MachineRates rates;
    const DeviceArena::Mark mark = kit.arena.mark();
    NIBBLE_TRY(rates.copy, copy_rate(kit));
    NIBBLE_TRY(const ProductNoise noise, ProductNoise::create(kit));
    const auto best = [&](std::string_view theirs, std::string_view ours, double& rate, std::string& by) -> Status {
        if (vendor.library) {
            if (auto measured = peak(kit, noise, theirs, vendor)) {
                rate = *measured, by = theirs;
                return Ok{};
            }
        }
        NIBBLE_TRY(rate, peak(kit, noise, ours, vendor));
        by = ours;
        return Ok{};
    };
    NIBBLE_CHECK(best("cuBLASLt BF16", "BF16", rates.bf16, rates.bf16_by));
    NIBBLE_CHECK(best("cuBLASLt FP8", "FP8 tensor", rates.fp8, rates.fp8_by));
    kit.arena.release(mark);
    return rates;
}

}  // namespace nibble::bench
