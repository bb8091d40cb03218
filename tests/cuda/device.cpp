#include "cuda/device.h"

#include <fmt/format.h>

#include <cstdlib>
#include <optional>
#include <string_view>

namespace nibble::bench {
namespace {

std::string_view variable(const char* name, std::string_view otherwise) {
    const char* value = std::getenv(name);
    return value && *value ? std::string_view(value) : otherwise;
}

struct OpenDevice {
    DeviceInfo info;
    Stream stream;
    DeviceArena arena;
};

Result<OpenDevice> open() {
    NIBBLE_TRY(const DeviceChoice choice, parse_device(std::string(variable("NIBBLE_DEVICE", "cuda"))));
    NIBBLE_TRY(DeviceInfo info, open_device(choice));
    NIBBLE_CHECK(use_device(info.index));
    const int64_t gib = std::atoll(std::string(variable("NIBBLE_CUDA_MEMORY", "24")).c_str());
    NIBBLE_TRY(Stream stream, Stream::create(info.index));
    NIBBLE_TRY(DeviceArena arena, DeviceArena::create(info.index, gib << 30));
    return OpenDevice{std::move(info), std::move(stream), std::move(arena)};
}

}  // namespace

Extent extent() {
    const std::string_view name = variable("NIBBLE_CUDA_TESTS", "all");
    if (name == "all") return Extent::all;
    if (name == "small") return Extent::small;
    if (name == "tiny") return Extent::tiny;
    fmt::print(stderr, "NIBBLE_CUDA_TESTS={}: all, small or tiny\n", name);
    std::exit(2);
}

Kit& kit() {
    // never closed, because the driver may be gone before static objects are destroyed
    static auto device = new Result<OpenDevice>(open());
    if (!*device) {
        fmt::print(stderr, "tests of CUDA kernels: {}\n", device->error().message());
        std::exit(2);
    }
    static Kit kit((*device)->stream, (*device)->info, (*device)->arena, 1);
    return kit;
}

void expect_all(const Result<std::vector<Check>>& checks) {
    ASSERT_TRUE(checks.ok()) << checks.error().message();
    int64_t compared = 0;
    double worst = 0;
    for (const Check& c : *checks) {
        EXPECT_EQ(c.wrong, 0) << c.name << ": " << c.first << ", " << c.wrong << " of " << c.compared;
        EXPECT_GT(c.compared, 0) << c.name;
        compared += c.compared, worst = std::max(worst, c.worst);
    }
    testing::Test::RecordProperty("checks", std::to_string(checks->size()));
    testing::Test::RecordProperty("compared", std::to_string(compared));
    if (worst > 0) testing::Test::RecordProperty("worst", fmt::format("{:.3e}", worst));
}

}  // namespace nibble::bench
