#include "tensor/device.h"

#include <charconv>

namespace nibble {

Result<DeviceChoice> parse_device(std::string_view text) {
    if (text == "cpu") return DeviceChoice{};
    if (text == "cuda") return DeviceChoice{true, 0};
    constexpr std::string_view prefix = "cuda:";
    if (text.starts_with(prefix)) {
        const char* first = text.data() + prefix.size();
        const char* last = text.data() + text.size();
        int index = 0;
        const auto [end, status] = std::from_chars(first, last, index);
        if (status == std::errc() && end == last && index >= 0 && first != last) return DeviceChoice{true, index};
    }
    return fail(ErrorKind::usage, "device '{}': expected cpu, cuda or cuda:N", text);
}

}  // namespace nibble
