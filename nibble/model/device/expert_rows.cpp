// Experts whose products are replaced (DeviceProduct): one product after the other, each for the rows of its expert.
#include "model/device/linear.h"

namespace nibble {

Result<std::vector<int32_t>> rows_of_experts(const int32_t* begin, int64_t experts, const Stream& stream) {
    std::vector<int32_t> host(static_cast<size_t>(experts + 1));
    NIBBLE_CHECK(copy_to_host(reinterpret_cast<std::byte*>(host.data()), reinterpret_cast<const std::byte*>(begin),
                              4 * std::ssize(host), stream));
    NIBBLE_CHECK(stream.synchronize());
    return host;
}

Status DeviceExperts::forward_others(const Part& part, const DeviceExpertRows& in, float* y, DeviceStep& step) const {
    NIBBLE_TRY(const std::vector<int32_t> begin, rows_of_experts(in.begin, experts, step.stream));
    const std::byte* x = in.x;
    if (in.rows) {
        NIBBLE_TRY(std::byte * gathered, step.scratch.allocate(in.n * cols * 2));
        NIBBLE_CHECK(cuda::embed(x, in.rows, in.n, cols, gathered, step.overlap, step.stream));
        x = gathered;
    }
    for (size_t e = 0; e < part.others.size(); ++e) {
        const int64_t first = begin[e], n = begin[e + 1] - first;
        if (n == 0) continue;
        NIBBLE_CHECK(part.others[e]
                         ->forward({.x = x + 2 * first * cols}, n, y + first * rows, rows, nullptr, step)
                         .within(part.names[e][0]));
    }
    return Ok{};
}

}  // namespace nibble
