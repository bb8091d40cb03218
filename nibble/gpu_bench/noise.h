// Fills large buffers with a repeated random piece. The host can compute the value at any index, so samples of a
// product of gigabytes can be checked.
#pragma once

#include "gpu_bench/kit.h"

#include <algorithm>

namespace nibble::bench {

template <class T>
class Noise {
public:
    static constexpr int64_t period = 4194301;  // prime, so that rows of a matrix begin at different offsets

    // `draw(random)` returns one element.
    template <class Draw>
    static Result<Noise> create(Kit& kit, Draw draw) {
        Noise noise;
        noise.piece_.resize(static_cast<size_t>(period));
        for (T& x : noise.piece_) x = static_cast<T>(draw(kit.random));
        NIBBLE_TRY(noise.device_, kit.upload(noise.piece_));
        return noise;
    }
    T at(int64_t index) const { return piece_[static_cast<size_t>(index % period)]; }
    // Copies elements [first, first + count) to the device.
    Status fill(const Kit& kit, void* device, int64_t count, int64_t first = 0) const {
        auto* to = static_cast<T*>(device);
        while (count > 0) {
            const int64_t from = first % period, here = std::min(count, period - from);
            NIBBLE_CHECK(copy_on_device(reinterpret_cast<std::byte*>(to),
                                        reinterpret_cast<const std::byte*>(device_ + from), here * int64_t{sizeof(T)},
                                        kit.stream));
            to += here, first += here, count -= here;
        }
        return Ok{};
    }

private:
    std::vector<T> piece_;
    const T* device_ = nullptr;
};

// Repeats the bytes at `first` to make `copies` copies in total. Launches that alternate between copies do not find
// them in L2.
inline Status repeat(const Kit& kit, std::byte* first, int64_t bytes, int64_t copies) {
    for (int64_t c = 1; c < copies; ++c) NIBBLE_CHECK(copy_on_device(first + c * bytes, first, bytes, kit.stream));
    return Ok{};
}
// Returns a number of copies that together exceed an H200's L2 eight times.
inline int cold_copies(int64_t bytes) {
    return static_cast<int>(std::max<int64_t>(2, (int64_t{400} << 20) / std::max<int64_t>(bytes, 1 << 20) + 1));
}

}  // namespace nibble::bench
