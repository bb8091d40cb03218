#include "gpu_bench/quantize.h"

#include "tensor/device.h"

namespace nibble::bench {
namespace {

bool show(const std::vector<CheckResult>& results, std::FILE* out, Json& report) {
    bool good = !results.empty();
    report["checks"] = Json::array();
    for (const CheckResult& r : results) {
        good = good && r.mismatches == 0 && r.cases > 0;
        if (out)
            fmt::print(out, "{:<58} {:>4} cases {:>11} elements {:>9} differ{}\n", r.name, r.cases, r.elements,
                       r.mismatches, r.mismatches ? "  " + r.first : "");
        report["checks"].push_back(
            {{"name", r.name}, {"cases", r.cases}, {"elements", r.elements}, {"mismatches", r.mismatches}});
    }
    return good;
}

void show(const std::vector<Timing>& timings, std::FILE* out, Json& report) {
    if (out)
        fmt::print(out, "{:<44} {:>10} {:>9} {:>7} {:>9} {:>9} {:>7}\n", "", "elements", "ms", "spread", "GB/s",
                   "BF16 GB/s", "of copy");
    report["timings"] = Json::array();
    for (const Timing& t : timings) {
        if (out)
            fmt::print(out, "{:<44} {:>10} {:>9.4f} {:>6.1f}% {:>9.0f} {:>9.0f} {:>6.1f}%\n", t.name, t.elements,
                       t.milliseconds, 100 * t.spread, t.rate() / 1e9, t.bf16_rate() / 1e9, 100 * t.fraction_of_copy);
        report["timings"].push_back({{"name", t.name},
                                     {"elements", t.elements},
                                     {"bytes", t.bytes},
                                     {"milliseconds", t.milliseconds},
                                     {"spread", t.spread},
                                     {"gb_per_second", t.rate() / 1e9},
                                     {"fraction_of_copy", t.fraction_of_copy}});
    }
}

}  // namespace

Result<bool> run_device_bench(const DeviceBench& bench, std::FILE* out, Json& report) {
    NIBBLE_TRY(const DeviceChoice choice, parse_device(bench.device).within("--device"));
    if (!choice.cuda) return fail("--device {}: not a GPU", bench.device);
    NIBBLE_TRY(const DeviceInfo info, open_device(choice));
    NIBBLE_CHECK(use_device(info.index));
    if (out)
        fmt::print(out, "{}: compute capability {}.{}, {} multiprocessors, {} GiB\n", info.name, info.major, info.minor,
                   info.multiprocessors, info.memory_bytes >> 30);
    report["device"] = info.name;
    NIBBLE_TRY(Stream stream, Stream::create(info.index));
    NIBBLE_TRY(DeviceArena arena, DeviceArena::create(info.index, bench.memory_gib << 30));
    NIBBLE_TRY(const auto results, check_all(stream, arena, bench.check));
    const bool good = show(results, out, report);
    NIBBLE_TRY(const auto timings, time_all(stream, arena, bench.timing));
    show(timings, out, report);
    return good;
}

}  // namespace nibble::bench
