#include "train/device/device_recipe.h"

#include "base/checked.h"
#include "train/train_self_test.h"

#include <algorithm>
#include <array>

namespace nibble {
namespace {

std::string both(const CastRule& a, const CastRule& b) {
    const std::string left = rule_text(a), right = rule_text(b);
    return left == right ? left : left + " x " + right;
}

}  // namespace

Status check_device_precision(const TrainPrecision& p, int ranks) {
    const std::string_view name = train_recipe_name(p.recipe);
    switch (p.recipe) {
        case TrainRecipe::bf16:
            return Ok{};
        case TrainRecipe::fp8:
        case TrainRecipe::mxfp8:
        case TrainRecipe::nvfp4:
            if (p.late_forward) return fail("--device cuda does not build late_forward yet ({})", name);
            if (ranks > 1) return fail("{} on {} GPUs is not built: use bf16, or one GPU", name, ranks);
            return Ok{};
        case TrainRecipe::fp32:
        case TrainRecipe::fp8_delayed:
        case TrainRecipe::fp8_block:
        case TrainRecipe::nibble_nvfp4:
            break;
    }
    return fail("--device cuda trains in bf16, fp8, mxfp8 and nvfp4; {} has no products there yet", name);
}

Result<std::unique_ptr<DeviceRecipe>> DeviceRecipe::plan(const TrainPrecision& precision, uint64_t seed,
                                                         const ModelParts& parts, const FlatLayout& flat) {
    NIBBLE_CHECK(train_self_test(precision, seed));
    auto r = std::make_unique<DeviceRecipe>();
    r->precision_ = precision;
    r->seed_ = seed;
    int64_t layers = 0;
    for (const Block& block : parts.blocks) layers = std::max<int64_t>(layers, block.config().layer + 1);
    if (precision.first_bf16 + precision.last_bf16 > layers)
        return fail("precision: {} and {} layers in BF16 of a model that has {}", precision.first_bf16,
                    precision.last_bf16, layers);
    uint32_t number = 0;
    for (size_t b = 0; b < parts.blocks.size(); ++b) {
        const Block& block = parts.blocks[b];
        const MixerConfig& mixer = block.config().mixer;
        const bool attention = std::holds_alternative<AttentionConfig>(mixer);
        const bool mlp = std::holds_alternative<MlpConfig>(mixer) || std::holds_alternative<MoeConfig>(mixer);
        const UnitPlace place{.layer = block.config().layer, .layers = layers, .mlp = mlp};
        const UnitRules rules = unit_rules(precision, place, false);
        if (rules.quantized && !attention && !std::holds_alternative<MlpConfig>(mixer))
            return fail("--device cuda has no quantized products of {} yet; use bf16", block.config().prefix);
        const auto units = block.mixer().units();
        for (size_t u = 0; u < units.size(); ++u, ++number) {
            const std::string& name = units[u][0].name;
            UnitLine line{.name = name, .layer = place.layer};
            if (rules.quantized) {
                auto product = std::make_unique<TrainProduct>(flat.units[b][u], number, rules, r->step_);
                NIBBLE_CHECK(product->check());
                line.forward = both(rules.x, rules.w) + " (BF16 products)";
                line.input_gradient = both(rules.dy, rules.w_back) + " (BF16 products)";
                line.weight_gradient = both(rules.dy_t, rules.x_t) + " (BF16 products)";
                r->by_name_.emplace(name, product.get());
                r->products_.push_back(std::move(product));
            } else {
                line.forward = "BF16 (the engine's)";
                line.input_gradient = line.weight_gradient = "BF16 x BF16, sums FP32";
            }
            r->lines_.push_back(std::move(line));
        }
    }
    r->lines_.push_back({"lm_head", -1, "BF16 (the engine's)", "BF16 x BF16, sums FP32", "BF16 x BF16, sums FP32"});
    return r;
}

int64_t DeviceRecipe::bytes() const {
    int64_t sum = DeviceArena::alignment;
    for (const auto& p : products_) sum += p->bytes();
    return sum;
}

Status DeviceRecipe::load(const DeviceInfo& device, const Stream& stream) {
    NIBBLE_TRY(memory_, DeviceArena::create(device.index, bytes()));
    NIBBLE_TRY(float* ends, memory_->allocate_array<float>(2));
    const std::array<float, 2> values{0.0f, 1.0f};
    NIBBLE_CHECK(copy_to_device(reinterpret_cast<std::byte*>(ends),
                                reinterpret_cast<std::byte*>(const_cast<float*>(values.data())), 8, stream));
    NIBBLE_CHECK(stream.synchronize());
    step_.ends = ends;
    for (const auto& p : products_) NIBBLE_CHECK(p->load(*memory_, stream));
    return Ok{};
}

int64_t DeviceRecipe::scratch_bytes(int64_t n) const {
    int64_t most = 0;
    for (const auto& p : products_) most = std::max({most, p->scratch_bytes(n), p->back_scratch_bytes(n)});
    return most;
}

TrainProduct* DeviceRecipe::find(const std::string& name) const {
    const auto at = by_name_.find(name);
    return at == by_name_.end() ? nullptr : at->second;
}

void DeviceRecipe::begin_step(int64_t step) { step_.draw = (seed_ << 20) + static_cast<uint64_t>(step); }

void DeviceRecipe::begin_rows(int64_t first_row, int64_t seq) {
    step_.tokens = static_cast<uint64_t>(first_row * seq);
    step_.groups = static_cast<uint64_t>(first_row * ((seq + 15) / 16));
}

std::vector<UnitLine> DeviceRecipe::table() const { return lines_; }

bool DeviceRecipe::sees_neighbours() const {
    return std::ranges::any_of(products_, [](const auto& p) { return nibble::sees_neighbours(p->rules()); });
}

}  // namespace nibble
