// Addresses of the emulated GPU: host addresses with an additional bit that no address of a host program has.
#pragma once

#include <cstdint>
#include <cstdlib>

namespace nibble::test {

constexpr uintptr_t device_bit = uintptr_t{1} << 50;

template <class T>
T* on_device(T* host) {
    return reinterpret_cast<T*>(reinterpret_cast<uintptr_t>(host) | device_bit);
}
template <class T>
T* on_host(T* device) {
    const auto address = reinterpret_cast<uintptr_t>(device);
    if (!(address & device_bit)) std::abort();
    return reinterpret_cast<T*>(address & ~device_bit);
}

}  // namespace nibble::test
