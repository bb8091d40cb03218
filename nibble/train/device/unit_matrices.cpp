#include "train/device/unit_matrices.h"

#include "model/cpu/moe.h"

namespace nibble {

// Order of flat_units(): the router; the first products of all experts; their second products; the shared expert's; the
// projections around the experts.
std::vector<FlatMatrix> unit_matrices(const Block& block, std::span<const FlatMatrix> units) {
    const auto* moe = dynamic_cast<const Moe*>(&block.mixer());
    if (!moe) return {units.begin(), units.end()};
    std::vector<FlatMatrix> all;
    const auto count = std::ssize(moe->experts());
    const auto part = [&](const FlatMatrix& stacked, int64_t expert, const std::string& name) {
        FlatMatrix m{.name = name + ".weight", .rows = stacked.rows / count, .cols = stacked.cols};
        m.at = stacked.at + expert * m.elements();
        if (stacked.bias >= 0) m.bias = stacked.bias + expert * m.rows;
        all.push_back(m);
    };
    if (moe->to_latent()) all.push_back(units[units.size() - 2]);
    for (int64_t e = 0; e < count; ++e) {
        const Mlp& expert = *moe->experts()[static_cast<size_t>(e)];
        part(units[1], e, expert.in().parts[0].name);
        part(units[2], e, expert.out().name);
    }
    if (moe->from_latent()) all.push_back(units.back());
    if (moe->shared()) {
        all.push_back(units[3]);
        all.push_back(units[4]);
    }
    return all;
}

}  // namespace nibble
