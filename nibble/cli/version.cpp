#include "cli/version.h"

#include "cli/commit.h"
#include "kernels/matmul.h"
#include "kernels/quantize.h"
#include "tensor/device.h"

#include <fmt/ranges.h>

namespace nibble {
namespace {

std::string cpu_text() {
    std::vector<std::string_view> built, here;
    for (const QuantizeKernels& kernels : quantize_kernels()) {
        built.push_back(kernels.name);
        if (kernels.supported()) here.push_back(kernels.name);
    }
    const auto tiles = select_matmul_kernels({}, SumOrder::tiles);
    return fmt::format("CPU kernels: {} (this CPU runs {}; sums in tiles: {})", fmt::join(built, ", "),
                       fmt::join(here, ", "), tiles.ok() ? (*tiles)->name : "none");
}

std::string cuda_text() {
#ifdef NIBBLE_CUDA_TARGETS
    const auto devices = list_devices();
    if (!devices.ok()) return fmt::format("CUDA: for {}; {}", NIBBLE_CUDA_TARGETS, devices.error().message());
    std::vector<std::string> names;
    for (const DeviceInfo& device : *devices) names.push_back(device.name);
    return fmt::format("CUDA: for {}; {}", NIBBLE_CUDA_TARGETS, fmt::join(names, ", "));
#else
    return "CUDA: not in this build";
#endif
}

}  // namespace

std::string version_text() {
    constexpr std::string_view commit = NIBBLE_COMMIT;
    return fmt::format("nibble {} ({})\n{}\n{}", NIBBLE_VERSION,
                       commit.empty() ? "of an unknown commit" : fmt::format("commit {}", commit), cpu_text(),
                       cuda_text());
}

}  // namespace nibble
