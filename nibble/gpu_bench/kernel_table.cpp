#include "gpu_bench/kernel_table.h"

#include <fmt/format.h>

namespace nibble::bench {

KernelTable::KernelTable(std::FILE* out, const DeviceInfo& device, const MachineRates& rates, const Vendor& vendor,
                         std::string baseline)
    : out_(out), rates_(rates) {
    json_ = {{"device", device.name},
             {"copy_bytes_per_second", rates.copy},
             {"bf16_operations_per_second", rates.bf16},
             {"bf16_measured_with", rates.bf16_by},
             {"fp8_operations_per_second", rates.fp8},
             {"fp8_measured_with", rates.fp8_by},
             {"cublaslt", vendor.library ? "" : vendor.missing},
             {"baseline", baseline},
             {"results", Json::array()}};
    if (!out_) return;
    fmt::print(out_, "{}, {} multiprocessors: copies {:.2f} TB/s; 8192 x 8192 x 8192: {} {:.0f}, {} {:.0f} TFLOP/s\n",
               device.name, device.multiprocessors, rates.copy * 1e-12, rates.bf16_by, rates.bf16 * 1e-12, rates.fp8_by,
               rates.fp8 * 1e-12);
    if (!vendor.library) fmt::print(out_, "no baseline: {}\n", vendor.missing);
    fmt::print(out_,
               "times in a graph with a cold L2: median, (max - min) / median; error: relative to the sum of an "
               "output's terms; ratio: time of {} / time\n",
               baseline);
    fmt::print(out_, "{:<22} {:<20} {:>6} {:>10} {:>6} {:>6} {:>6} {:>8} {:>7} {:>6} {:>8}\n", "kernel", "shape",
               "tokens", "us", "spread", "TB/s", "copy", "TFLOP/s", "peak", "ratio", "error");
}

void KernelTable::add(const KernelRow& row) {
    const bool right = row.check.wrong == 0 && row.check.compared > 0;
    good_ = good_ && right;
    Json entry = {{"kernel", row.kernel},           {"shape", row.shape},       {"tokens", row.tokens},
                  {"compared", row.check.compared}, {"wrong", row.check.wrong}, {"error", row.check.worst}};
    if (out_) fmt::print(out_, "{:<22} {:<20} {:>6} ", row.kernel, row.shape, row.tokens);
    if (right) {
        const double seconds = row.time.us * 1e-6, rate = row.bytes / seconds, speed = row.operations / seconds;
        const double peak = row.fp8 ? rates_.fp8 : rates_.bf16, ratio = row.baseline_us / row.time.us;
        entry.update({{"microseconds", row.time.us},
                      {"least", row.time.least},
                      {"most", row.time.most},
                      {"bytes_per_second", rate},
                      {"fraction_of_copy", rate / rates_.copy},
                      {"operations_per_second", speed},
                      {"fraction_of_peak", speed / peak}});
        if (row.baseline_us > 0) entry["ratio"] = ratio;
        if (out_)
            fmt::print(out_, "{:>10.2f} {:>5.1f}% {:>6.2f} {:>5.1f}% {:>8.1f} {:>6.1f}% {:>6} {:>8.1e}\n", row.time.us,
                       100 * row.time.spread(), rate * 1e-12, 100 * rate / rates_.copy, speed * 1e-12,
                       100 * speed / peak, row.baseline_us > 0 ? fmt::format("{:.2f}", ratio) : "-", row.check.worst);
    } else if (out_) {
        fmt::print(out_, "WRONG, {} of {} outputs: {}\n", row.check.wrong, row.check.compared, row.check.first);
    }
    json_["results"].push_back(std::move(entry));
    if (out_) std::fflush(out_);
}

}  // namespace nibble::bench
