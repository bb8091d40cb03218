// The state that a step leaves for later steps: scales, directions, statistics; and its form in checkpoints.
#include "train/host_recipe_units.h"

#include <algorithm>
#include <cfloat>
#include <utility>

namespace nibble {

void DelayedScale::end_step(bool hold) {
    if (history.empty()) return;
    held = std::max(held, std::exchange(seen, 0.0f));
    if (hold) return;
    if (held == 0) {  // all values were zero
        if (stored && scale == 0) scale = 1;
        return;
    }
    history[0] = std::exchange(held, 0.0f);
    const float most = *std::ranges::max_element(history);
    if (is_finite(most) && most > 0) {
        scale = stored ? std::max(most / largest, FLT_MIN) : largest / most;
        if (!is_finite(scale)) scale = float_from_bits(0x7F7FFFFFu);
    }
    std::rotate(history.begin(), history.begin() + 1, history.end());
    history[0] = 0;
}

HostRecipe::HostRecipe(const Parameters& parameters, const TrainPrecision& precision, uint64_t seed)
    : parameters_(parameters), precision_(precision), seed_(seed), units_(std::make_unique<Units>()) {}
HostRecipe::~HostRecipe() = default;

void HostRecipe::begin_step(int64_t step, int64_t steps) {
    step_ = step;
    recording_ = true;
    const bool late = late_phase(precision_, step, steps);
    // MS-EDEN redraws weights in every step
    if (late != late_ || precision_.recipe == TrainRecipe::nibble_nvfp4) ++epoch_;
    late_ = late;
    if (watch_) ++epoch_;  // weights are rounded again to measure them
    for (const auto& unit : units_->list) {
        if (watch_) unit->inputs_seen = unit->weights_seen = unit->gradients_seen = {};
        for (DelayedScale& d : unit->delayed) d.seen = 0;
        if (unit->early.rank > 0) unit->directions.begin_step();
    }
    if (precision_.recipe == TrainRecipe::fp8_delayed) ++epoch_;  // maxima of weights are recorded once per step
}

void HostRecipe::begin_row(int64_t row, int64_t seq) {
    watched_row_ = watch_ && row == 0;
    row_tokens_ = static_cast<uint64_t>(row * seq);
    row_groups_ = static_cast<uint64_t>(row * ((seq + 15) / 16));
}

void HostRecipe::end_step(bool updated) {
    recording_ = watched_row_ = false;
    if (!updated) {  // maxima of a skipped step are unreliable
        for (const auto& unit : units_->list)
            for (DelayedScale& d : unit->delayed) d.seen = 0, d.held = hold_ ? d.held : 0;
        return;
    }
    ++done_;
    ++epoch_;
    const bool turn = done_ == 2 || done_ == 4 || done_ == 8 || done_ % 20 == 0;
    for (const auto& unit : units_->list) {
        for (DelayedScale& d : unit->delayed) d.end_step(hold_);
        if (unit->early.rank == 0) continue;
        unit->directions.end_step();
        if (turn) unit->directions.renew();
    }
}

StepSeen HostRecipe::seen() const {
    StepSeen all;
    for (const auto& u : units_->list) {
        for (const DelayedScale& d : u->delayed)
            if (!d.history.empty()) all.largest.push_back(d.seen);
        const std::vector<float>& some = u->directions.of_step();
        all.directions.insert(all.directions.end(), some.begin(), some.end());
    }
    return all;
}

void HostRecipe::set_seen(const StepSeen& seen) {
    auto largest = seen.largest.begin();
    std::span<const float> directions(seen.directions);
    for (const auto& u : units_->list) {
        for (DelayedScale& d : u->delayed)
            if (!d.history.empty()) d.seen = *largest++;
        const size_t size = u->directions.of_step().size();
        u->directions.set_of_step(directions.first(size));
        directions = directions.subspan(size);
    }
}

void HostRecipe::pause() { recording_ = watched_row_ = false; }

bool HostRecipe::calibrates() const {
    return std::ranges::any_of(units_->list, [](const auto& u) { return u->early.x.stored; });
}

void HostRecipe::begin_calibration() {
    recording_ = true;
    for (DelayedScale* d : stored_scales())
        *d = {.history = std::vector<float>(d->history.size()), .scale = 0, .largest = d->largest, .stored = true};
}

void HostRecipe::end_calibration() {
    recording_ = false;
    for (DelayedScale* d : stored_scales()) d->end_step();
}

Result<std::vector<float>> HostRecipe::input_scales() const {
    std::vector<float> all;
    for (const DelayedScale* d : stored_scales()) all.push_back(d->scale);
    return all;
}

Status HostRecipe::set_input_scales(std::span<const float> scales) {
    const std::vector<DelayedScale*> all = stored_scales();
    if (scales.size() != all.size())
        return fail("there are {} scales of inputs for {} units", scales.size(), all.size());
    if (!std::ranges::all_of(scales, [](float s) { return s > 0 && is_finite(s); }))
        return fail("a scale of inputs is not positive and finite");
    for (size_t i = 0; i < all.size(); ++i) all[i]->scale = scales[i];
    return Ok{};
}

// Returns each shared scale once.
std::vector<DelayedScale*> HostRecipe::stored_scales() const {
    std::vector<DelayedScale*> all;
    for (const auto& u : units_->list)
        if (u->inputs->stored && u->inputs == u->delayed.data()) all.push_back(u->inputs);
    return all;
}

std::vector<float> HostRecipe::state() const {
    std::vector<float> all;
    if (precision_.recipe == TrainRecipe::nibble_nvfp4) all.push_back(static_cast<float>(done_));
    for (const auto& u : units_->list) {
        for (const DelayedScale& d : u->delayed) {
            if (d.history.empty()) continue;
            all.push_back(d.scale);
            all.insert(all.end(), d.history.begin(), d.history.end());
        }
        const std::vector<float> some = u->directions.state();
        all.insert(all.end(), some.begin(), some.end());
    }
    return all;
}

Status HostRecipe::set_state(const std::vector<float>& state) {
    const size_t want = this->state().size();
    if (state.size() != want)
        return fail("the state of the precision recipe has {} numbers instead of {}", state.size(), want);
    auto from = state.begin();
    if (precision_.recipe == TrainRecipe::nibble_nvfp4) done_ = static_cast<int64_t>(*from++);
    for (const auto& u : units_->list) {
        for (DelayedScale& d : u->delayed) {
            if (d.history.empty()) continue;
            d.scale = *from++;
            std::copy_n(from, d.history.size(), d.history.begin());
            from += std::ssize(d.history);
        }
        const auto size = static_cast<std::ptrdiff_t>(u->directions.state().size());
        if (!u->directions.set_state({from, from + size})) return fail("the state of input directions is damaged");
        from += size;
    }
    ++epoch_;
    return Ok{};
}

}  // namespace nibble
