// Tests F16 and F32 checkpoints on a GPU, which computes in BF16: values that BF16 represents give the exact logits of
// the BF16 checkpoint and no note, others are rounded and counted, and overflow is refused with the tensor's name.
#include "checkpoint/random_checkpoint.h"
#include "cuda/models/compare.h"
#include "formats/minifloat.h"
#include "model/cpu/widen.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>

namespace nibble::bench {
namespace {

// A checkpoint's tensors converted to another dtype.
class RecastCheckpoint : public Checkpoint {
public:
    static Result<std::shared_ptr<RecastCheckpoint>> create(const Checkpoint& from, DType dtype) {
        auto made = std::make_shared<RecastCheckpoint>();
        made->path_ = from.path();
        made->config_ = from.config();
        for (size_t i = 0; i < from.tensors().size(); ++i) {
            CheckpointTensor t = from.tensors()[i];
            Matrix scratch;
            NIBBLE_TRY(const MatrixView view, from.read_plain(i, 0, t.rows(), scratch));
            std::vector<float> wide(static_cast<size_t>(view.rows * view.cols));
            widen(view, wide.data());
            t.dtype = dtype;
            t.stored_type = dtype == DType::f16 ? "F16" : "F32";
            Matrix values(dtype, view.rows, view.cols);
            if (dtype == DType::f32) std::memcpy(values.data.data(), wide.data(), values.data.size());
            for (size_t e = 0; dtype == DType::f16 && e < wide.size(); ++e) {
                const auto half = static_cast<_Float16>(wide[e]);
                made->inexact_ += static_cast<float>(half) != wide[e];
                std::memcpy(values.data.data() + 2 * e, &half, 2);
            }
            made->tensors_.push_back(std::move(t));
            made->values_.push_back(std::move(values));
        }
        return made;
    }
    Matrix* find(std::string_view name) {
        for (size_t i = 0; i < tensors_.size(); ++i)
            if (tensors_[i].name == name) return &values_[i];
        return nullptr;
    }
    int64_t inexact() const { return inexact_; }

    const std::filesystem::path& path() const override { return path_; }
    Dialect dialect() const override { return Dialect::plain; }
    const Json& config() const override { return config_; }
    KvFormat kv() const override { return KvFormat::none; }
    std::span<const CheckpointTensor> tensors() const override { return tensors_; }
    Result<MatrixView> read_plain(size_t index, int64_t begin, int64_t count, Matrix&) const override {
        return values_[index].view().panel(begin, count);
    }
    Result<QuantView> read_quant(size_t, int64_t, int64_t, QuantMatrix&) const override {
        return fail("nothing is quantized here");
    }
    void done_with(size_t, int64_t, int64_t) const override {}
    Result<std::vector<SideFile>> side_files() const override { return std::vector<SideFile>{}; }

private:
    std::filesystem::path path_;
    Json config_;
    std::vector<CheckpointTensor> tensors_;
    std::vector<Matrix> values_;
    int64_t inexact_ = 0;
};

class CudaSourceDtype : public testing::TestWithParam<DType> {
protected:
    void SetUp() override {
        auto bf16 = random_checkpoint({.shape = "llama-8b", .format = "bf16", .layers = 1, .vocab = 2048});
        ASSERT_TRUE(bf16.ok()) << bf16.error().message();
        bf16_ = *std::move(bf16);
        auto recast = RecastCheckpoint::create(*bf16_, GetParam());
        ASSERT_TRUE(recast.ok()) << recast.error().message();
        recast_ = *std::move(recast);
    }
    Result<std::unique_ptr<DeviceModel>> load(std::shared_ptr<const Checkpoint> checkpoint) {
        const char* device = std::getenv("NIBBLE_DEVICE");
        NIBBLE_TRY(const DeviceChoice choice, parse_device(device ? device : "cuda"));
        return DeviceModel::load(std::move(checkpoint), {}, choice, pool_);
    }
    ThreadPool pool_;
    std::shared_ptr<const Checkpoint> bf16_;
    std::shared_ptr<RecastCheckpoint> recast_;
    const char* gate_ = "model.layers.0.mlp.gate_proj.weight";
};

TEST_P(CudaSourceDtype, ValuesThatBf16HoldsGiveItsLogits) {
    const auto plain = load(bf16_), recast = load(recast_);
    ASSERT_TRUE(plain.ok()) << plain.error().message();
    ASSERT_TRUE(recast.ok()) << recast.error().message();
    const auto texts = read_texts("", (*plain)->config(), 70);
    ASSERT_TRUE(texts.ok());
    const auto expected = all_rows(**plain, texts->ids), seen = all_rows(**recast, texts->ids);
    ASSERT_TRUE(expected.ok() && seen.ok());
    // F16 cannot represent the smallest of the BF16 random numbers. If the conversion was exact, the comparison is
    // exact.
    if (recast_->inexact() == 0) {
        EXPECT_EQ(*expected, *seen);
        EXPECT_EQ((*recast)->note(), "");
    }
    if (GetParam() == DType::f32) {
        EXPECT_EQ(recast_->inexact(), 0);
    }
}

TEST_P(CudaSourceDtype, OtherValuesAreRoundedAndCounted) {
    Matrix& gate = *recast_->find(gate_);
    // 1 + 2^-10 lies between BF16's 1 and 1 + 2^-7. It is written 256 times.
    for (size_t e = 0; e < 256; ++e) {
        const float wide = 1.0009765625f;
        const auto half = static_cast<_Float16>(wide);
        if (GetParam() == DType::f16)
            std::memcpy(gate.data.data() + 2 * e, &half, 2);
        else
            std::memcpy(gate.data.data() + 4 * e, &wide, 4);
    }
    const auto model = load(recast_);
    ASSERT_TRUE(model.ok()) << model.error().message();
    EXPECT_NE((*model)->note().find("multiplies BF16"), std::string::npos) << (*model)->note();
    if (recast_->inexact() == 0)
        EXPECT_NE((*model)->note().find(": 256 values in 1 "), std::string::npos) << (*model)->note();
}

TEST_P(CudaSourceDtype, WhatOverflowsIsRefusedByName) {
    if (GetParam() == DType::f16) return;  // no F16 value exceeds BF16's range
    const float beyond = 3.4e38f;
    std::memcpy(recast_->find(gate_)->data.data(), &beyond, 4);
    const auto model = load(recast_);
    ASSERT_FALSE(model.ok());
    EXPECT_NE(std::string(model.error().message()).find(gate_), std::string::npos) << model.error().message();
}

INSTANTIATE_TEST_SUITE_P(Sources, CudaSourceDtype, testing::Values(DType::f16, DType::f32),
                         [](const auto& info) { return info.param == DType::f16 ? "f16" : "f32"; });

}  // namespace
}  // namespace nibble::bench
