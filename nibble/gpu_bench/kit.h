// Moves data to and from the device for checks of its kernels.
#pragma once

#include "formats/minifloat.h"
#include "tensor/device.h"

#include <random>
#include <string>
#include <vector>

namespace nibble::bench {

// The result of one check.
struct Check {
    std::string name;
    int64_t compared = 0, wrong = 0;
    double worst = 0;   // largest difference from double precision, if compared
    std::string first;  // first wrong value

    void note(std::string where) {
        if (wrong++ == 0) first = std::move(where);
    }
};

class Kit {
public:
    static constexpr uint8_t poison = 0xA5;

    Kit(const Stream& stream, const DeviceInfo& device, DeviceArena& arena, uint64_t seed)
        : stream(stream), device(device), arena(arena), random(seed) {}

    template <class T>
    Result<T*> upload(const std::vector<T>& host) {
        NIBBLE_TRY(T * p, arena.allocate_array<T>(static_cast<int64_t>(host.size()) + 16));
        NIBBLE_CHECK(copy_to_device(reinterpret_cast<std::byte*>(p), reinterpret_cast<const std::byte*>(host.data()),
                                    static_cast<int64_t>(host.size() * sizeof(T)), stream));
        return p;
    }
    Result<const std::byte*> upload_bytes(const auto& host) {
        NIBBLE_TRY(auto* p, upload(host));
        return reinterpret_cast<const std::byte*>(p);
    }
    template <class T>
    Result<std::vector<T>> download(const void* from, int64_t count) {
        std::vector<T> host(static_cast<size_t>(count));
        NIBBLE_CHECK(copy_to_host(reinterpret_cast<std::byte*>(host.data()), static_cast<const std::byte*>(from),
                                  count * int64_t{sizeof(T)}, stream));
        NIBBLE_CHECK(stream.synchronize());
        return host;
    }
    Result<std::byte*> poisoned(int64_t bytes) {
        NIBBLE_TRY(std::byte * p, arena.allocate(bytes));
        NIBBLE_CHECK(fill_device(p, poison, bytes, stream));
        return p;
    }
    std::vector<float> normal(int64_t count, float sigma) {
        std::normal_distribution<float> d(0.0f, sigma);
        std::vector<float> x(static_cast<size_t>(count));
        for (float& v : x) v = d(random);
        return x;
    }
    std::vector<uint16_t> normal_bf16(int64_t count, float sigma) {
        const std::vector<float> x = normal(count, sigma);
        std::vector<uint16_t> bits(x.size());
        for (size_t i = 0; i < x.size(); ++i) bits[i] = bf16_from_float(x[i]);
        return bits;
    }

    const Stream& stream;
    const DeviceInfo& device;
    DeviceArena& arena;
    std::mt19937_64 random;
};

}  // namespace nibble::bench
