#include "train/device/device_recipe.h"

#include "base/checked.h"
#include "kernels/cast_cuda.h"
#include "train/device/unit_matrices.h"
#include "train/train_flops.h"
#include "train/train_self_test.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace nibble {
namespace {

constexpr const char* plain_back = "BF16 x BF16, sums FP32";

std::byte* bytes_of_array(float* p) { return reinterpret_cast<std::byte*>(p); }

std::string both(const CastRule& a, const CastRule& b) {
    const std::string left = rule_text(a), right = rule_text(b);
    return left == right ? left : left + " x " + right;
}

}  // namespace

Status check_device_share(const TrainPrecision& p, int64_t tokens, int ranks) {
    if (!has_directions(p) || ranks == 1 || tokens >= InputDirections::most_observed) return Ok{};
    return fail(
        "{} on {} GPUs: each GPU has {} tokens of a step, but the first {} tokens, which give the directions, must be "
        "on one GPU",
        train_precision_name(p), ranks, tokens, InputDirections::most_observed);
}

Result<std::unique_ptr<DeviceRecipe>> DeviceRecipe::plan(const TrainPrecision& precision, uint64_t seed,
                                                         const ModelParts& parts, const FlatLayout& flat,
                                                         ThreadPool& pool) {
    NIBBLE_CHECK(train_self_test(precision, seed));
    auto r = std::make_unique<DeviceRecipe>();
    r->precision_ = precision;
    r->seed_ = seed;
    r->pool_ = &pool;
    r->step_.draw = seed << 20;
    r->step_.codes = cuda::multiplies_codes();
    int64_t layers = 0;
    for (const Block& block : parts.blocks) layers = std::max<int64_t>(layers, block.config().layer + 1);
    if (precision.first_bf16 + precision.last_bf16 > layers)
        return fail("precision: {} first and {} last layers in BF16, but the model has {} layers", precision.first_bf16,
                    precision.last_bf16, layers);
    for (const int64_t layer : precision.bf16_layers)
        if (layer >= layers)
            return fail("precision: bf16_layers has layer {}, but the model has {} layers", layer, layers);
    uint32_t number = 0;
    std::unordered_map<std::string, int64_t> scales;
    for (size_t b = 0; b < parts.blocks.size(); ++b) {
        const Block& block = parts.blocks[b];
        const MixerConfig& mixer = block.config().mixer;
        const bool mlp = std::holds_alternative<MlpConfig>(mixer) || std::holds_alternative<MoeConfig>(mixer);
        const UnitPlace place{.layer = block.config().layer, .layers = layers, .mlp = mlp};
        const UnitRules rules = unit_rules(precision, place, false), late = unit_rules(precision, place, true);
        if (rules.quantized && std::holds_alternative<MoeConfig>(mixer)) r->experts_ = true;
        const auto units = block.mixer().units();
        const std::vector<FlatMatrix> matrices = unit_matrices(block, flat.units[b]);
        for (size_t u = 0; u < units.size(); ++u, ++number) {
            const std::string& name = units[u][0].name;
            UnitLine line{.name = name, .layer = place.layer};
            if (rules.quantized) {
                const auto own =
                    scales.try_emplace(rules.x.stored ? input_group(name) : name, std::ssize(scales)).first;
                auto product = std::make_unique<RecipeProduct>(matrices[u], number, std::ssize(r->products_),
                                                               own->second, rules, late, r->step_);
                NIBBLE_CHECK(product->check());
                const DeviceDirections* along = product->directions();
                line.forward = both(rules.x, rules.w) + (along ? fmt::format(" + rank {}", along->rank()) : "");
                const bool plain = rules.plain_back, eden = rules.eden;
                line.input_gradient = plain ? plain_back : eden ? "NVFP4 MS-EDEN" : both(rules.dy, rules.w_back);
                line.weight_gradient = plain ? plain_back : eden ? "NVFP4 MS-EDEN" : both(rules.dy_t, rules.x_t);
                line.forward += product->forward_codes(rules) ? " (FP8 tensor cores)" : " (BF16 products)";
                for (std::string* text : {&line.input_gradient, &line.weight_gradient})
                    *text += product->back_codes(rules) ? " (FP8 tensor cores, cuBLASLt)" : " (BF16 products)";
                for (const Linear& part : units[u]) line.rows += part.rows;
                line.cols = units[u][0].cols, line.share = token_share(block.config(), name), line.fp4 = fp4_use(rules);
                r->by_name_.emplace(name, product.get());
                r->products_.push_back(std::move(product));
                r->blocks_.push_back(b);
            } else {
                line.forward = "BF16 (the engine's)";
                line.input_gradient = line.weight_gradient = plain_back;
            }
            r->lines_.push_back(std::move(line));
        }
    }
    r->scales_ = std::ssize(scales);
    r->lines_.push_back({"lm_head", -1, "BF16 (the engine's)", plain_back, plain_back});
    return r;
}

int64_t DeviceRecipe::bytes() const {
    int64_t sum = DeviceArena::alignment + round_up(staging_bytes(), DeviceArena::alignment);
    for (const auto& p : products_) sum += p->bytes();
    for (const int64_t each : {int64_t{1}, int64_t{1}, int64_t{1}, precision_.amax_history})
        sum += round_up(4 * each * delayed(), DeviceArena::alignment);
    return sum;
}

int64_t DeviceRecipe::copy_bytes(size_t block) const {
    int64_t sum = 0;
    for (size_t i = 0; i < products_.size(); ++i)
        if (blocks_[i] == block) sum += products_[i]->copy_bytes();
    return sum;
}

int64_t DeviceRecipe::kept_bytes() const {
    int64_t sum = bytes();
    for (const auto& p : products_) sum -= p->copy_bytes();
    return sum;
}

int64_t DeviceRecipe::delayed() const {
    const int64_t roles = precision_.recipe == TrainRecipe::fp8_delayed ? int64_t{DelayedUnits::all_roles}
                          : precision_.stored_inputs                    ? 1
                                                                        : 0;
    return roles * scales_;
}

int64_t DeviceRecipe::staging_bytes() const {
    int64_t most = 16;
    for (const auto& p : products_) most = std::max(most, p->staging_bytes());
    return most;
}

Status DeviceRecipe::load(const DeviceInfo& device, const Stream& stream, const Copies& copies) {
    device_ = device.index;
    stream_ = &stream;
    NIBBLE_TRY(memory_, DeviceArena::create(device.index, copies ? kept_bytes() : bytes()));
    NIBBLE_TRY(float* ends, memory_->allocate_array<float>(3));  // the third one is for samples
    const std::array<float, 2> values{0.0f, 1.0f};
    NIBBLE_CHECK(copy_to_device(reinterpret_cast<std::byte*>(ends),
                                reinterpret_cast<std::byte*>(const_cast<float*>(values.data())), 8, stream));
    NIBBLE_CHECK(stream.synchronize());
    step_.ends = ends;
    samples_.emplace(products_.size(), ends + 2);
    NIBBLE_TRY(step_.staging, memory_->allocate(staging_bytes()));
    DeviceArena* of_copies = &*memory_;
    for (size_t i = 0; i < products_.size(); ++i) {
        if (copies && (i == 0 || blocks_[i] != blocks_[i - 1])) of_copies = copies(blocks_[i]);
        NIBBLE_CHECK(products_[i]->load(*memory_, *of_copies, stream));
    }
    if (delayed() == 0) return Ok{};
    step_.delayed.units = scales_;
    step_.delayed.roles = delayed() / step_.delayed.units;
    NIBBLE_TRY(step_.delayed.scales, memory_->allocate_array<float>(delayed()));
    NIBBLE_TRY(step_.delayed.seen, memory_->allocate_array<float>(delayed()));
    NIBBLE_TRY(step_.delayed.held, memory_->allocate_array<float>(delayed()));
    NIBBLE_TRY(histories_, memory_->allocate_array<float>(delayed() * precision_.amax_history));
    std::vector<float> first(static_cast<size_t>(state_size()), 0.0f);
    for (size_t i = 0; i < first.size(); i += static_cast<size_t>(precision_.amax_history) + 1)
        first[i] = precision_.stored_inputs ? 0.0f : 1.0f;
    return set_state(first, stream);
}

int64_t DeviceRecipe::scratch_bytes(int64_t n) const {
    int64_t most = 0;
    if (experts_) n = expert_rows(n);
    for (const auto& p : products_) most = std::max({most, p->scratch_bytes(n), p->back_scratch_bytes(n)});
    return most;
}

RecipeProduct* DeviceRecipe::find(const std::string& name) const {
    const auto at = by_name_.find(name);
    return at == by_name_.end() ? nullptr : at->second;
}

Result<bool> DeviceRecipe::begin_step(int64_t step, int64_t steps, bool watched, const Stream& stream) {
    step_.draw = (seed_ << 20) + static_cast<uint64_t>(step);
    const bool before = step_.late;
    step_.late = late_phase(precision_, step, steps);
    step_.recording = true;
    step_.samples = watch_ && watched && samples_ ? &*samples_ : nullptr;
    if (step_.samples) samples_->begin(sampled_rows());
    for (const auto& p : products_)
        if (DeviceDirections* along = p->directions()) NIBBLE_CHECK(along->begin_step(watched, stream));
    // The maxima of weights were recorded when they were copied.
    const int64_t rows = std::min<int64_t>(DelayedUnits::weights, step_.delayed.roles) * step_.delayed.units;
    if (rows > 0) NIBBLE_CHECK(fill_device(bytes_of_array(step_.delayed.seen), 0, 4 * rows, stream));
    return step_.late != before;
}

// 512, or fewer for a model with many experts, because the host repeats the rounding of all samples.
int64_t DeviceRecipe::sampled_rows() const {
    constexpr int64_t most = 512, least = 16, elements = int64_t{1} << 28;
    int64_t a_row = 1;
    for (const auto& p : products_) a_row += 2 * p->weight().cols + p->weight().rows;
    return std::clamp(elements / a_row / least * least, least, most);
}

Status DeviceRecipe::look_at_weights(const std::byte* published, const Stream& stream) const {
    for (const auto& p : products_) NIBBLE_CHECK(p->look_at_weight(published, stream));
    return Ok{};
}

std::vector<UnitQuality> DeviceRecipe::quality() const {
    std::vector<UnitQuality> list;
    size_t unit = 0;
    const auto measured = [&](const std::optional<OperandSample>& sample) {
        return sample ? std::optional(measure(*sample, *pool_)) : std::nullopt;
    };
    for (const UnitLine& line : lines_) {
        if (!by_name_.contains(line.name)) continue;
        const UnitSample& s = samples_->of(unit++);
        if (s.inputs || s.weights || s.gradients)
            list.push_back({line.name, line.layer, measured(s.inputs), measured(s.weights), measured(s.gradients)});
    }
    return list;
}

Status DeviceRecipe::draw(const std::byte* published, const Stream& stream) const {
    for (const auto& p : products_) NIBBLE_CHECK(p->draw(published, stream));
    return Ok{};
}

Status DeviceRecipe::draw(size_t block, const std::byte* published, const Stream& stream) const {
    for (size_t i = 0; i < products_.size(); ++i)
        if (blocks_[i] == block) NIBBLE_CHECK(products_[i]->draw(published, stream));
    return Ok{};
}

bool DeviceRecipe::draws(size_t block) const {
    for (size_t i = 0; i < products_.size(); ++i)
        if (blocks_[i] == block && products_[i]->draws()) return true;
    return false;
}

Result<bool> DeviceRecipe::count_step(const Stream& stream) {
    ++done_;
    if (!hold_) step_.stored = true;
    if (done_ != 2 && done_ != 4 && done_ != 8 && done_ % 20 != 0) return false;
    bool any = false;
    for (const auto& p : products_)
        if (DeviceDirections* along = p->directions()) {
            NIBBLE_CHECK(along->renew(stream));
            any = true;
        }
    return any;
}

Status DeviceRecipe::end_step(const float* clip, DeviceRanks& ranks, const Stream& stream) {
    std::vector<DeviceRanks::Numbers> watched;
    for (const auto& p : products_)
        if (DeviceDirections* along = p->directions()) watched.push_back(along->of_step());
    NIBBLE_CHECK(ranks.take_from_first(watched, stream));
    for (const auto& p : products_)
        if (DeviceDirections* along = p->directions()) NIBBLE_CHECK(along->end_step(clip, stream));
    return renew_scales(clip, &ranks, stream);
}

Status DeviceRecipe::renew_scales(const float* clip, DeviceRanks* ranks, const Stream& stream) const {
    const DelayedUnits& d = step_.delayed;
    if (d.units == 0) return Ok{};
    const float* others = nullptr;
    if (ranks) {
        NIBBLE_TRY(others, ranks->others(d.seen, delayed(), stream));
    }
    const bool stored = precision_.stored_inputs;
    for (int64_t role = 0; role < d.roles; ++role)
        NIBBLE_CHECK(cuda::renew_scales({.stored = stored,
                                         .hold = hold_ && ranks,
                                         .count = d.units,
                                         .history = precision_.amax_history,
                                         .scales = d.scales + role * d.units,
                                         .seen = d.seen + role * d.units,
                                         .held = d.held + role * d.units,
                                         .histories = histories_ + role * d.units * precision_.amax_history,
                                         .largest = stored                            ? e2m1_max * e4m3_max
                                                    : role == DelayedUnits::gradients ? e5m2_max
                                                                                      : e4m3_max,
                                         .others = others + (others ? role * d.units : 0),
                                         .sets = ranks ? ranks->size() - 1 : 0,
                                         .apart = delayed()},
                                        clip, stream));
    return Ok{};
}

Status DeviceRecipe::skip_step(const Stream& stream) {
    if (delayed() == 0 || hold_) return Ok{};
    return fill_device(bytes_of_array(step_.delayed.held), 0, 4 * delayed(), stream);
}

Status DeviceRecipe::begin_calibration(const Stream& stream) {
    if (!calibrates()) return Ok{};
    NIBBLE_CHECK(set_state(std::vector<float>(static_cast<size_t>(state_size()), 0.0f), stream));
    step_.recording = true;
    return Ok{};
}

// Every process sees all rows, so no exchange is needed.
Status DeviceRecipe::end_calibration(const Stream& stream) {
    step_.recording = false;
    if (!calibrates()) return Ok{};
    NIBBLE_CHECK(renew_scales(step_.ends, nullptr, stream));
    step_.stored = true;
    return Ok{};
}

Result<std::vector<float>> DeviceRecipe::input_scales() const {
    std::vector<float> scales(static_cast<size_t>(calibrates() ? step_.delayed.units : 0));
    if (scales.empty()) return scales;
    NIBBLE_CHECK(use_device(device_));
    NIBBLE_CHECK(copy_to_host(bytes_of_array(scales.data()), bytes_of_array(step_.delayed.scales),
                              4 * step_.delayed.units, *stream_));
    NIBBLE_CHECK(stream_->synchronize());
    return scales;
}

Status DeviceRecipe::set_input_scales(std::span<const float> scales) {
    const int64_t units = calibrates() ? step_.delayed.units : 0;
    if (std::ssize(scales) != units) return fail("there are {} scales of inputs for {} units", scales.size(), units);
    if (!std::ranges::all_of(scales, [](float s) { return s > 0 && std::isfinite(s); }))
        return fail("a scale of inputs is not positive and finite");
    if (units == 0) return Ok{};
    NIBBLE_CHECK(use_device(device_));
    NIBBLE_CHECK(copy_to_device(bytes_of_array(step_.delayed.scales), bytes_of_array(const_cast<float*>(scales.data())),
                                4 * units, *stream_));
    step_.stored = true;
    return stream_->synchronize();
}

int64_t DeviceRecipe::state_size() const {
    int64_t size = delayed() * (1 + precision_.amax_history);
    if (precision_.recipe == TrainRecipe::nibble_nvfp4) ++size;  // done_
    for (const auto& p : products_)
        if (const DeviceDirections* along = p->directions()) size += along->state_size();
    return size;
}

namespace {

// Calls each(index in the arrays, index in a state) for every scale. A state has, unit by unit, inputs, weights and
// gradients; each is a scale followed by its history.
template <class Each>
void each_scale(const DelayedUnits& d, const Each& each) {
    size_t at = 0;
    for (int64_t u = 0; u < d.units; ++u)
        for (const auto role : {DelayedUnits::inputs, DelayedUnits::weights, DelayedUnits::gradients})
            if (role < d.roles) each(static_cast<size_t>(role * d.units + u), at++);
}

}  // namespace

Result<std::vector<float>> DeviceRecipe::state(const Stream& stream) const {
    const auto history = static_cast<size_t>(precision_.amax_history), count = static_cast<size_t>(delayed());
    std::vector<float> scales(count), histories(count * history), all(static_cast<size_t>(state_size()));
    if (precision_.recipe == TrainRecipe::nibble_nvfp4) {
        all = {static_cast<float>(done_)};
        for (const auto& p : products_)
            if (const DeviceDirections* along = p->directions()) {
                NIBBLE_TRY(const std::vector<float> some, along->state(stream));
                all.insert(all.end(), some.begin(), some.end());
            }
    }
    if (count == 0) return all;
    NIBBLE_CHECK(
        copy_to_host(bytes_of_array(scales.data()), bytes_of_array(step_.delayed.scales), 4 * delayed(), stream));
    NIBBLE_CHECK(
        copy_to_host(bytes_of_array(histories.data()), bytes_of_array(histories_), 4 * std::ssize(histories), stream));
    NIBBLE_CHECK(stream.synchronize());
    each_scale(step_.delayed, [&](size_t here, size_t place) {
        float* to = all.data() + place * (1 + history);
        *to = scales[here];
        std::copy_n(histories.data() + here * history, history, to + 1);
    });
    return all;
}

Status DeviceRecipe::set_state(const std::vector<float>& state, const Stream& stream) {
    if (std::ssize(state) != state_size())
        return fail("the state of the precision recipe has {} numbers instead of {}", state.size(), state_size());
    const auto history = static_cast<size_t>(precision_.amax_history), count = static_cast<size_t>(delayed());
    if (precision_.recipe == TrainRecipe::nibble_nvfp4) {
        done_ = static_cast<int64_t>(state[0]);
        auto from = state.begin() + 1;
        for (const auto& p : products_)
            if (DeviceDirections* along = p->directions()) {
                NIBBLE_CHECK(along->set_state({from, from + along->state_size()}, stream));
                from += along->state_size();
            }
    }
    if (count == 0) return Ok{};
    std::vector<float> scales(count), histories(count * history);
    each_scale(step_.delayed, [&](size_t here, size_t place) {
        const float* from = state.data() + place * (1 + history);
        scales[here] = *from;
        std::copy_n(from + 1, history, histories.data() + here * history);
    });
    NIBBLE_CHECK(
        copy_to_device(bytes_of_array(step_.delayed.scales), bytes_of_array(scales.data()), 4 * delayed(), stream));
    NIBBLE_CHECK(copy_to_device(bytes_of_array(histories_), bytes_of_array(histories.data()), 4 * std::ssize(histories),
                                stream));
    for (float* none : {step_.delayed.seen, step_.delayed.held})
        NIBBLE_CHECK(fill_device(bytes_of_array(none), 0, 4 * delayed(), stream));
    step_.stored = std::ranges::all_of(scales, [](float s) { return s > 0; });
    return stream.synchronize();
}

void DeviceRecipe::begin_rows(int64_t first_row, int64_t seq) {
    step_.tokens = static_cast<uint64_t>(first_row * seq);
    step_.groups = static_cast<uint64_t>(first_row * ((seq + 15) / 16));
    step_.seq = seq;
}

bool DeviceRecipe::sees_neighbours() const {
    return std::ranges::any_of(products_, [](const auto& p) { return nibble::sees_neighbours(p->rules()); });
}

}  // namespace nibble
