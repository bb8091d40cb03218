#include "tensor/device.h"

#include <gtest/gtest.h>

namespace nibble {
namespace {

TEST(Device, ParsesCpuCudaAndAnIndex) {
    EXPECT_EQ(*parse_device("cpu"), (DeviceChoice{false, 0}));
    EXPECT_EQ(*parse_device("cuda"), (DeviceChoice{true, 0}));
    EXPECT_EQ(*parse_device("cuda:3"), (DeviceChoice{true, 3}));
}

TEST(Device, RefusesEverythingElseWithTheChoices) {
    for (const char* text :
         {"", "gpu", "CUDA", "cuda:", "cuda:-1", "cuda:x", "cuda:1x", "cuda:99999999999", "cpu:0", "cuda :1"}) {
        const auto choice = parse_device(text);
        ASSERT_FALSE(choice.ok()) << text;
        EXPECT_NE(choice.error().message().find("expected cpu, cuda or cuda:N"), std::string::npos);
    }
}

// Runs in a build without CUDA, or with CUDA on a machine without a GPU; skipped if there is a GPU.
TEST(Device, WithoutAUsableGpuEveryCommandGivesOneLineWithTheReason) {
    if (list_devices().ok()) GTEST_SKIP() << "this machine has a GPU";
    const std::string errors[] = {list_devices().error().message(), open_device({true, 0}).error().message(),
                                  device_memory(0).error().message(), limit_device_memory(0, 0.5).error().message()};
    for (const std::string& e : errors) {
        EXPECT_FALSE(e.empty());
        EXPECT_EQ(e.find('\n'), std::string::npos) << e;
    }
}

TEST(Device, CpuIsNotOpenedAsAGpu) { EXPECT_EQ(open_device({}).error().message(), "device cpu is not a GPU"); }

}  // namespace
}  // namespace nibble
