#include "train/device/device_directions.h"

#include "base/checked.h"
#include "train/input_directions.h"

#include <algorithm>

namespace nibble {
namespace {

std::byte* of_numbers(const float* p) { return reinterpret_cast<std::byte*>(const_cast<float*>(p)); }

}  // namespace

int64_t DeviceDirections::bytes() const {
    return round_up(4 * host_.cols() * rank(), DeviceArena::alignment) +
           2 * round_up(4 * numbers(), DeviceArena::alignment);
}

Status DeviceDirections::load(DeviceArena& arena, const Stream& stream) {
    NIBBLE_TRY(p_, arena.allocate_array<float>(host_.cols() * rank()));
    NIBBLE_TRY(z_, arena.allocate_array<float>(numbers()));
    NIBBLE_TRY(step_, arena.allocate_array<float>(numbers()));
    return upload(stream);
}

// Copies the host's P and Z to the device.
Status DeviceDirections::upload(const Stream& stream) {
    const std::vector<float> state = host_.state();
    const int64_t rank = this->rank(), cols = host_.cols();
    std::vector<float> z(static_cast<size_t>(numbers()), 0.0f);
    for (int64_t c = 0; c < cols; ++c) std::copy_n(state.data() + (cols + c) * rank, rank, z.data() + c * pitch());
    NIBBLE_CHECK(copy_to_device(of_numbers(p_), of_numbers(state.data()), 4 * cols * rank, stream));
    NIBBLE_CHECK(copy_to_device(of_numbers(z_), of_numbers(z.data()), 4 * numbers(), stream));
    NIBBLE_CHECK(begin_step(true, stream));
    return stream.synchronize();
}

Result<InputDirections> DeviceDirections::now(const Stream& stream) const {
    std::vector<float> z(static_cast<size_t>(numbers())), state = host_.state();
    NIBBLE_CHECK(copy_to_host(of_numbers(z.data()), of_numbers(z_), 4 * numbers(), stream));
    NIBBLE_CHECK(stream.synchronize());
    const int64_t cols = host_.cols();
    for (int64_t c = 0; c < cols; ++c) std::copy_n(z.data() + c * pitch(), rank(), state.data() + (cols + c) * rank());
    InputDirections all = host_;
    if (!all.set_state(state)) return fail("the state has input directions of another size");
    return all;
}

Status DeviceDirections::split(const std::byte* x, int64_t n, std::byte* a, std::byte* rest,
                               const Stream& stream) const {
    return cuda::split_rows(
        {.x = x, .n = n, .cols = host_.cols(), .p = p_, .rank = rank(), .pitch = pitch(), .a = a, .rest = rest},
        stream);
}

Status DeviceDirections::add_term(const float* turned, int64_t rows, float* dw, const Stream& stream) const {
    return cuda::add_term(turned, rows, {.cols = host_.cols(), .p = p_, .rank = rank(), .pitch = pitch()}, dw, stream);
}

Status DeviceDirections::begin_step(bool watched, const Stream& stream) {
    seen_ = watched ? 0 : InputDirections::most_observed;
    return fill_device(of_numbers(step_), 0, 4 * numbers(), stream);
}

Status DeviceDirections::observe(const std::byte* x, const std::byte* a, int64_t n, TrainWork& work) {
    n = std::min(n, InputDirections::most_observed - seen_);
    if (n <= 0) return Ok{};
    seen_ += n;
    NIBBLE_TRY(const cuda::BackPlan* plan, work.plans.of(n, host_.cols(), pitch()));
    return cuda::back_weight_gradient(*plan, x, a, step_, true, work.workspace, work.step.stream);
}

Status DeviceDirections::end_step(const float* clip, const Stream& stream) {
    return cuda::add_step(z_, step_, numbers(), clip, stream);
}

Status DeviceDirections::renew(const Stream& stream) {
    NIBBLE_TRY(host_, now(stream));
    host_.renew();
    return upload(stream);
}

Result<std::vector<float>> DeviceDirections::state(const Stream& stream) const {
    NIBBLE_TRY(const InputDirections all, now(stream));
    return all.state();
}

Status DeviceDirections::set_state(const std::vector<float>& state, const Stream& stream) {
    if (!host_.set_state(state)) return fail("the state of input directions is damaged");
    return upload(stream);
}

}  // namespace nibble
