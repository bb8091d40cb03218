// The tiny reference models of families on the emulated GPU: the loading of their weights, and the operations that each
// block queues, checked by the distance of the logits from transformers'.
#include "cuda/models/family_texts.h"

#include "device/emulated_gpu.h"

#include <gtest/gtest.h>

namespace nibble::test {
namespace {

class DeviceFamilies : public testing::TestWithParam<const char*> {};

Status check_family(const std::filesystem::path& folder) {
    ThreadPool pool(2);
    NIBBLE_TRY(std::shared_ptr<const Checkpoint> checkpoint, Checkpoint::open(folder));
    ModelOptions exact;
    exact.compute = Compute::f32;
    NIBBLE_TRY(const Model gold, Model::load(checkpoint, exact, pool));
    NIBBLE_TRY(const bench::Texts texts, bench::family_texts(folder, gold));
    NIBBLE_TRY(const Model cpu, Model::load(checkpoint, {}, pool));
    NIBBLE_TRY(const auto device, DeviceModel::load(checkpoint, {}, {true, 0}, pool));
    NIBBLE_TRY(const bench::Distance d, bench::compare(cpu, *device, texts));
    const std::string numbers =
        fmt::format("median distance of a row from FP32: CPU {:.4f} ({} of {} rows far out), GPU {:.4f} ({})",
                    d.cpu_to_gold.median, d.cpu_to_gold.far, d.rows, d.device_to_gold.median, d.device_to_gold.far);
    std::printf("%s: %s\n", folder.filename().c_str(), numbers.c_str());
    EXPECT_TRUE(d.good()) << numbers;
    // Two chunks through the cache give the bits of the whole text.
    const auto text = std::span(texts.ids[0]);
    NIBBLE_TRY(const std::vector<float> whole, bench::all_rows(*device, {texts.ids[0]}));
    NIBBLE_TRY(const auto kv, device->make_pool(256, 2));
    Sequence sequence = kv->sequence();
    std::vector<float> pieces;
    for (const auto& [first, count] : {std::pair<size_t, size_t>{0, 21}, {21, text.size() - 21}}) {
        std::vector<float> logits(count * static_cast<size_t>(device->config().vocab));
        NIBBLE_CHECK(device->forward(Batch({{&sequence, text.subspan(first, count), 0}}), logits));
        pieces.insert(pieces.end(), logits.begin(), logits.end());
    }
    EXPECT_TRUE(pieces == whole) << "in two chunks";
    return Ok{};
}

TEST_P(DeviceFamilies, LogitsAreThoseOfTransformers) {
    emulated_gpu().free_bytes = int64_t{4} << 30;
    const Status done = check_family(family_root() / GetParam());
    EXPECT_TRUE(done.ok()) << done.error().message();
    emulated_gpu().free_bytes = int64_t{1} << 30;
}

INSTANTIATE_TEST_SUITE_P(All, DeviceFamilies, testing::ValuesIn(bench::gpu_families),
                         [](const auto& family) { return std::string(family.param); });

}  // namespace
}  // namespace nibble::test
