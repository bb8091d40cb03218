#include "quant/uniform_moments.h"

#include <algorithm>

namespace nibble {

Status UniformMoments::put(const std::string& module, const Gram& gram, ThreadPool& pool) {
    const int64_t n = gram.size();
    const auto bytes = static_cast<size_t>(n * (n + 1) / 2) * sizeof(float);
    NIBBLE_TRY(auto upper, ScratchMemory::create(bytes, static_cast<size_t>(std::max<int64_t>(memory_, 0)), scratch_));
    if (!upper.spilled()) memory_ -= static_cast<int64_t>(bytes);
    auto* out = reinterpret_cast<float*>(upper.data());
    pool.parallel_for(n, [&](int64_t i) {
        float* row = out + i * n - i * (i + 1) / 2;  // row[j] is entry (i, j)
        for (int64_t j = i; j < n; ++j) row[j] = static_cast<float>(gram.sums()[static_cast<size_t>(i * n + j)]);
    });
    moments_.insert_or_assign(module, Moments{std::move(upper), gram.tokens()});
    return Ok{};
}

const UniformMoments::Moments* UniformMoments::find(const std::string& module) const {
    const auto owner = owner_.find(module);
    const auto found = moments_.find(owner == owner_.end() ? module : owner->second);
    return found == moments_.end() ? nullptr : &found->second;
}

int64_t UniformMoments::tokens(const std::string& module) const {
    const Moments* found = find(module);
    return found ? found->tokens : 0;
}

void UniformMoments::add_to(Gram& gram, const std::string& module, double factor, ThreadPool& pool) const {
    if (const Moments* found = find(module))
        gram.add_upper(reinterpret_cast<const float*>(found->upper.data()), factor, pool);
}

}  // namespace nibble
