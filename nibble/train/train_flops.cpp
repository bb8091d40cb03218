#include "train/train_flops.h"

#include <fmt/format.h>

#include <variant>

namespace nibble {
namespace {

double attention_width(const BlockConfig& block) {
    if (const auto* a = std::get_if<AttentionConfig>(&block.mixer)) return double(a->heads) * a->head_dim;
    if (const auto* a = std::get_if<LatentAttentionConfig>(&block.mixer))
        return double(a->heads) * (a->nope_dim + a->rope.dims + a->v_dim) / 2;
    return 0;
}

}  // namespace

double token_share(const BlockConfig& block, const std::string& linear) {
    const auto* moe = std::get_if<MoeConfig>(&block.mixer);
    const bool routed = moe && linear.find(".experts.") != std::string::npos;
    return routed ? static_cast<double>(moe->top_k) / moe->experts : 1.0;
}

double train_flops(std::span<const Block> blocks, const Head& head, int64_t seq) {
    const auto size = [](const Linear& l) { return static_cast<double>(l.rows) * static_cast<double>(l.cols); };
    double weights = size(head.linear()), width = 0;
    for (const Block& block : blocks) {
        for (const Linear* l : block.linears()) weights += size(*l) * token_share(block.config(), l->name);
        width += attention_width(block.config());
    }
    return 6 * weights + 6 * static_cast<double>(seq) * width;
}

Fp4Savings fp4_savings(std::span<const UnitLine> table, double flops, int64_t tokens) {
    double products = 0, elements = 0;
    for (const UnitLine& line : table) {
        const auto rows = static_cast<double>(line.rows), cols = static_cast<double>(line.cols);
        const double passing = line.share * static_cast<double>(tokens);
        products += 2 * line.fp4.products * rows * cols * line.share;
        elements +=
            line.fp4.weights * rows * cols + line.fp4.inputs * cols * passing + line.fp4.gradients * rows * passing;
    }
    const double share = products / flops;
    return {.share = share, .time = 1 - 0.75 * share, .bytes = elements * 4.5 / 8, .bf16_bytes = elements * 2};
}

std::string Fp4Savings::text() const {
    if (bf16_bytes == 0) return {};
    const std::string products =
        share == 0 ? "none of its products has two FP4 operands"
                   : fmt::format(
                         "{:.1f} % of its FLOP have two FP4 operands, and at four times BF16's rate the step's "
                         "products take {:.2f} of their time in BF16",
                         100 * share, time);
    return fmt::format("a step on FP4 tensor cores: {}; FP4 operands are {:.3g} GB instead of {:.3g} GB in BF16",
                       products, bytes * 1e-9, bf16_bytes * 1e-9);
}

}  // namespace nibble
