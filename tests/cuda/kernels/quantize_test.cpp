#include "cuda/device.h"
#include "gpu_bench/quantize_check.h"

namespace nibble::bench {
namespace {

// The checks that `nibble bench quantize --device cuda` runs before it times.
Result<std::vector<Check>> check_quantize() {
    const int64_t elements = extent() == Extent::all ? int64_t{1} << 20 : 60000;
    NIBBLE_TRY(const auto results, check_all(kit().stream, kit().arena, {.elements = elements}));
    std::vector<Check> checks;
    for (const CheckResult& r : results)
        checks.push_back({.name = r.name, .compared = r.elements, .wrong = r.mismatches, .first = r.first});
    return checks;
}

TEST(CudaKernels, Quantize) { expect_all(check_quantize()); }

}  // namespace
}  // namespace nibble::bench
