// The tiny reference models of families on a GPU: distance of the logits from transformers' against that of the CPU in
// BF16, and equal bits in batches and chunks.
#include "cuda/models/family_texts.h"
#include "cuda/models/stack_checkpoint.h"

#include <gtest/gtest.h>

#include <cstdlib>

namespace nibble::bench {
namespace {

class CudaFamilies : public testing::TestWithParam<const char*> {};

Status check_model(const std::shared_ptr<const Checkpoint>& checkpoint, const Texts& texts, ThreadPool& pool) {
    const char* name = std::getenv("NIBBLE_DEVICE");
    NIBBLE_TRY(const DeviceChoice choice, parse_device(name && *name ? name : "cuda"));
    NIBBLE_TRY(const Model cpu, Model::load(checkpoint, {}, pool));
    NIBBLE_TRY(const auto device, DeviceModel::load(checkpoint, {}, choice, pool));
    NIBBLE_TRY(const Distance d, compare(cpu, *device, texts));
    const std::string numbers = fmt::format(
        "median distance of a row from FP32: CPU {:.4f} ({} of {} rows far out), GPU {:.4f} ({}); between them {:.4f}; "
        "same likeliest token {}",
        d.cpu_to_gold.median, d.cpu_to_gold.far, d.rows, d.device_to_gold.median, d.device_to_gold.far, d.to_cpu.median,
        d.same_top);
    std::printf("%s: %s\n", checkpoint->path().filename().c_str(), numbers.c_str());
    EXPECT_TRUE(d.good()) << numbers;
    NIBBLE_TRY(const std::vector<Difference> differences, check_invariance(*device, texts, 1));
    EXPECT_FALSE(differences.empty());
    for (const Difference& each : differences) {
        EXPECT_GT(each.of, 0) << each.what;
        EXPECT_EQ(each.rows, 0) << fmt::format("{}: {} of {} rows have other bits, the first {}, up to {:.1e} apart",
                                               each.what, each.rows, each.of, each.first, each.worst);
    }
    return Ok{};
}

Status check_family(const std::filesystem::path& folder) {
    ThreadPool pool;
    NIBBLE_TRY(std::shared_ptr<const Checkpoint> checkpoint, Checkpoint::open(folder));
    ModelOptions exact;
    exact.compute = Compute::f32;
    NIBBLE_TRY(const Model gold, Model::load(checkpoint, exact, pool));
    NIBBLE_TRY(const Texts texts, family_texts(folder, gold));
    return check_model(checkpoint, texts, pool);
}

// GPT-OSS with stacks in a format; the exact logits are those of the same codes in FP32.
Status check_stacks(Format format) {
    ThreadPool pool;
    const std::filesystem::path folder = test::family_root() / "gpt_oss";
    NIBBLE_TRY(std::shared_ptr<const Checkpoint> plain, Checkpoint::open(folder));
    ModelOptions exact;
    exact.compute = Compute::f32;
    NIBBLE_TRY(const Model of_plain, Model::load(plain, exact, pool));
    NIBBLE_TRY(Texts texts, family_texts(folder, of_plain));
    NIBBLE_TRY(const std::shared_ptr<const Checkpoint> checkpoint, StackCheckpoint::create(plain, format));
    NIBBLE_TRY(const Model gold, Model::load(checkpoint, exact, pool));
    const std::vector<float> before = texts.gold;
    NIBBLE_TRY(texts.gold, all_rows(gold, texts.ids));
    EXPECT_NE(texts.gold, before) << "the codes change no logit";
    return check_model(checkpoint, texts, pool);
}

TEST(CudaStacks, OfGptOssRunInEveryFormat) {
    for (const Format format : {Format::mxfp4, Format::nvfp4, Format::fp8}) {
        const Status done = check_stacks(format);
        EXPECT_TRUE(done.ok()) << format_name(format) << ": " << done.error().message();
    }
}

TEST_P(CudaFamilies, LogitsAreThoseOfTransformersInAnyBatch) {
    const Status done = check_family(test::family_root() / GetParam());
    EXPECT_TRUE(done.ok()) << done.error().message();
}

INSTANTIATE_TEST_SUITE_P(All, CudaFamilies, testing::ValuesIn(gpu_families),
                         [](const auto& family) { return std::string(family.param); });

}  // namespace
}  // namespace nibble::bench
