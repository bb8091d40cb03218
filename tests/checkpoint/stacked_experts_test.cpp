// Experts stacked in 3-D tensors are read as one matrix each.
#include "checkpoint/convert.h"
#include "checkpoint/folders.h"
#include "checkpoint/text_config.h"
#include "io/safetensors.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <tuple>

namespace nibble::test {
namespace {

namespace fs = std::filesystem;

constexpr int64_t experts = 3, inner = 4, hidden = 6;

// Returns a number that is unique in the layer, from projection (0 gate, 1 up, 2 down), expert, output and input.
uint16_t element(int64_t projection, int64_t expert, int64_t out, int64_t in) {
    return static_cast<uint16_t>(projection * 4096 + expert * 1024 + out * 32 + in);
}

// Returns [E, out, in] with the given projections one after the other along the outputs, or its transpose.
RawTensor stack(std::string name, const std::vector<int64_t>& projections, int64_t rows, int64_t cols,
                bool transposed) {
    const int64_t outputs = rows * static_cast<int64_t>(projections.size());
    std::vector<uint16_t> values(static_cast<size_t>(experts * outputs * cols));
    for (int64_t e = 0; e < experts; ++e)
        for (int64_t o = 0; o < outputs; ++o)
            for (int64_t i = 0; i < cols; ++i)
                values[static_cast<size_t>(e * outputs * cols + (transposed ? i * outputs + o : o * cols + i))] =
                    element(projections[static_cast<size_t>(o / rows)], e, o % rows, i);
    return raw(std::move(name), DType::bf16,
               transposed ? std::vector{experts, cols, outputs} : std::vector{experts, outputs, cols}, values);
}

std::vector<RawTensor> gated_layer(const std::string& mlp, bool transposed, std::string_view suffix = "",
                                   int64_t width = hidden) {
    return {stack(fmt::format("{}.experts.gate_up_proj{}", mlp, suffix), {0, 1}, inner, width, transposed),
            stack(fmt::format("{}.experts.down_proj{}", mlp, suffix), {2}, width, inner, transposed)};
}

class StackedExperts : public ::testing::Test {
protected:
    Result<std::unique_ptr<Checkpoint>> open(const std::vector<RawTensor>& tensors, const Json& config) {
        const fs::path folder = dir_ / fmt::format("model{}", ++folders_);
        fs::create_directory(folder);
        write_file(folder / "config.json", config.dump());
        write_safetensors(folder / "model.safetensors", tensors);
        return Checkpoint::open(folder);
    }
    // Returns why the first 3-D tensor is not split.
    std::string whole(const std::vector<RawTensor>& tensors, const Json& config) {
        const auto opened = open(tensors, config);
        if (!opened.ok()) return opened.error().message();
        EXPECT_EQ((*opened)->tensors().size(), tensors.size());
        for (const CheckpointTensor& t : (*opened)->tensors())
            if (t.shape.size() == 3) return t.whole;
        return "split";
    }

    TempDir dir_;
    int folders_ = 0;
};

// Checks every element of every matrix, read in panels of every height.
void expect_elements(const Checkpoint& in, const std::string& mlp, int64_t width) {
    const std::array<std::string, 3> names{"gate_proj", "up_proj", "down_proj"};
    for (int64_t e = 0; e < experts; ++e)
        for (int64_t p = 0; p < 3; ++p) {
            const size_t index =
                index_of(in, fmt::format("{}.experts.{}.{}.weight", mlp, e, names[static_cast<size_t>(p)]));
            const CheckpointTensor& t = in.tensors()[index];
            ASSERT_EQ(t.shape, p == 2 ? (std::vector{width, inner}) : (std::vector{inner, width}));
            EXPECT_EQ(t.stored_bytes, inner * width * 2);
            for (int64_t height = 1; height <= t.rows(); ++height)
                for (int64_t begin = 0; begin < t.rows(); begin += height) {
                    Matrix scratch;
                    const int64_t count = std::min(height, t.rows() - begin);
                    const MatrixView view = value_of(in.read_plain(index, begin, count, scratch));
                    ASSERT_EQ(view.rows, count);
                    for (int64_t r = 0; r < count; ++r)
                        for (int64_t c = 0; c < t.cols(); ++c) {
                            uint16_t found;
                            std::memcpy(&found, view.data + (r * t.cols() + c) * 2, sizeof found);
                            ASSERT_EQ(found, element(p, e, begin + r, c)) << t.name << " " << begin + r << " " << c;
                        }
                    in.done_with(index, begin, count);
                }
        }
}

TEST_F(StackedExperts, AreSplitIntoMatricesInBothLayoutsAndUnderBothNames) {
    for (const bool transposed : {false, true})
        for (const char* suffix : {"", ".weight"})
            for (const int64_t width :
                 {hidden, 2 * inner, inner}) {  // with 2 * inner, gate_up_proj is square; with inner, down_proj is
                SCOPED_TRACE(fmt::format("{} '{}' {}", transposed, suffix, width));
                const auto in =
                    value_of(open(gated_layer("m.layers.0.mlp", transposed, suffix, width), Json::object()));
                EXPECT_EQ(in->tensors().size(), static_cast<size_t>(3 * experts));
                expect_elements(*in, "m.layers.0.mlp", width);
            }
}

TEST_F(StackedExperts, StoredRowByRowAreNotCopied) {
    const auto in = value_of(open(gated_layer("mlp", false), Json::object()));
    Matrix scratch;
    const auto gate = value_of(in->read_plain(index_of(*in, "mlp.experts.1.gate_proj.weight"), 0, inner, scratch));
    const auto up = value_of(in->read_plain(index_of(*in, "mlp.experts.1.up_proj.weight"), 0, inner, scratch));
    EXPECT_TRUE(scratch.data.empty());
    EXPECT_EQ(gate.data + gate.bytes(), up.data);
}

TEST_F(StackedExperts, WithGateAndUpApartAreReadByHiddenSize) {
    for (const bool transposed : {false, true}) {
        const std::vector<RawTensor> layer{stack("mlp.experts.gate_proj", {0}, inner, hidden, transposed),
                                           stack("mlp.experts.up_proj", {1}, inner, hidden, transposed),
                                           stack("mlp.experts.down_proj", {2}, hidden, inner, transposed)};
        const auto in = value_of(open(layer, {{"text_config", {{"hidden_size", hidden}}}}));
        expect_elements(*in, "mlp", hidden);
        EXPECT_EQ(whole(layer, {{"hidden_size", 99}}), "hidden_size 99 does not show which dimension is the inputs");
        EXPECT_EQ(whole(layer, Json::object()), "hidden_size 0 does not show which dimension is the inputs");
    }
}

TEST_F(StackedExperts, ThatCannotBeSplitStayWholeWithAReason) {
    const std::vector<RawTensor> layer = gated_layer("mlp", true);
    auto biased = layer;
    biased.push_back(filled("mlp.experts.down_proj_bias", DType::bf16, {experts, hidden}));
    EXPECT_EQ(whole(biased, {{"model_type", "new_moe"}}), "new_moe: experts with biases are not supported");
    constexpr std::string_view parts =
        "a layer's experts are gate_up_proj and down_proj, or up_proj, down_proj and maybe gate_proj";
    EXPECT_EQ(whole({layer[0]}, Json::object()), parts);
    EXPECT_EQ(whole({layer[1]}, Json::object()), parts);
    EXPECT_EQ(whole({layer[0], layer[1], stack("mlp.experts.gate_proj", {0}, inner, hidden, false)}, Json::object()),
              parts);
    const auto pair = [](std::vector<int64_t> gate_up, std::vector<int64_t> down) {
        return std::vector{filled("mlp.experts.gate_up_proj", DType::bf16, std::move(gate_up)),
                           filled("mlp.experts.down_proj", DType::bf16, std::move(down))};
    };
    EXPECT_EQ(whole(pair({3, 8, 6}, {2, 6, 4}), Json::object()), "3 experts in one tensor of the layer, 2 in another");
    EXPECT_EQ(whole(pair({0, 8, 6}, {0, 6, 4}), Json::object()), "experts without elements");
    EXPECT_EQ(whole(pair({65537, 2, 1}, {65537, 1, 1}), Json::object()), "65537 experts, at most 65536 are supported");
    for (const auto& [gate_up, down] : std::vector<std::pair<std::vector<int64_t>, std::vector<int64_t>>>{
             {{3, 7, 6}, {3, 6, 3}}, {{3, 8, 6}, {3, 4, 6}}, {{3, 8, 6}, {3, 6, 5}}, {{3, 6, 7}, {3, 3, 6}}})
        EXPECT_EQ(whole(pair(gate_up, down), Json::object()), "the shapes of the layer's expert tensors do not match");
}

// Reads a matrix of all experts in panels of every height, and writes it back.
TEST_F(StackedExperts, StacksOfGptOssAreOneMatrixWithTheRowsOfAllExperts) {
    auto layer = gated_layer("mlp", true);
    layer.push_back(filled("mlp.experts.down_proj_bias", DType::bf16, {experts, hidden}));
    const auto in = value_of(open(layer, {{"model_type", "gpt_oss"}}));
    ASSERT_EQ(in->tensors().size(), 3u);
    for (const auto& [name, outputs, inputs] :
         {std::tuple("mlp.experts.gate_up_proj", 2 * inner, hidden), {"mlp.experts.down_proj", hidden, inner}}) {
        const size_t index = index_of(*in, name);
        const CheckpointTensor& t = in->tensors()[index];
        EXPECT_EQ(t.experts, experts);
        ASSERT_EQ(t.shape, (std::vector{experts * outputs, inputs}));
        for (int64_t height = 1; height <= t.rows(); ++height)
            for (int64_t begin = 0; begin < t.rows(); begin += height) {
                Matrix scratch;
                const int64_t count = std::min(height, t.rows() - begin);
                const MatrixView view = value_of(in->read_plain(index, begin, count, scratch));
                for (int64_t i = 0; i < count * inputs; ++i) {
                    uint16_t found;
                    std::memcpy(&found, view.data + 2 * i, sizeof found);
                    const int64_t row = (begin + i / inputs) % outputs, expert = (begin + i / inputs) / outputs;
                    const bool down = outputs == hidden;
                    ASSERT_EQ(found, element(down ? 2 : row / inner, expert, down ? row : row % inner, i % inputs));
                }
                in->done_with(index, begin, count);
            }
    }
    ThreadPool pool(2);
    const auto report = convert(*in, {.out = dir_ / "again"}, pool, {});
    ASSERT_TRUE(report.ok()) << report.error().message();
    const auto before = value_of(SafetensorsFile::open(in->path() / "model.safetensors"));
    const auto after = value_of(SafetensorsFile::open(dir_ / "again" / "model.safetensors"));
    for (const TensorRecord& t : before.tensors()) {
        ASSERT_TRUE(after.find(t.name)) << t.name;
        EXPECT_EQ(after.find(t.name)->shape, t.shape);
        EXPECT_TRUE(std::ranges::equal(after.find(t.name)->data, t.data)) << t.name;
    }
}

TEST_F(StackedExperts, TogetherWithSingleOnesOfTheSameNameAreAnError) {
    auto tensors = gated_layer("mlp", false);
    tensors.push_back(filled("mlp.experts.2.up_proj.weight", DType::bf16, {inner, hidden}));
    EXPECT_NE(message_of(open(tensors, Json::object())).find("mlp.experts.2.up_proj.weight' is stored twice"),
              std::string::npos);
}

TEST_F(StackedExperts, StacksOfPredictionLayersAndOtherTensorsAreNotQuantized) {
    auto tensors = gated_layer("mtp.layers.0.mlp", false);
    tensors.push_back(filled("mlp.experts.router_table", DType::bf16, {3, 4, 4}));
    tensors.push_back(filled("mlp.experts.up_proj", DType::i32, {3, 4, 4}));
    tensors.push_back(filled("visual.patch_embed.proj.weight", DType::bf16, {4, 3, 2, 2}));
    const auto in = value_of(open(tensors, Json::object()));
    ASSERT_EQ(in->tensors().size(), tensors.size());
    for (const CheckpointTensor& t : in->tensors()) EXPECT_EQ(t.whole, "") << t.name;
}

TEST(PredictionLayers, AreThoseBeyondTheTextModel) {
    const PredictionLayers one(Json{{"text_config", {{"num_hidden_layers", 2}}}}), unknown(Json{});
    for (const char* name :
         {"mtp.fc.weight", "mtp.layers.0.mlp.up_proj.weight", "model.mtp.norm.weight",
          "model.mtp_layers.0.mlp.up_proj.weight", "model.layers.2.mlp.up_proj.weight",
          "model.language_model.layers.2.eh_proj.weight", "language_model.model.layers.61.enorm.weight"})
        EXPECT_TRUE(one.contains(name)) << name;
    for (const char* name : {"model.layers.1.mlp.up_proj.weight", "layers.x.weight", "lm_head.weight", "weight", "",
                             "model.vision_tower.encoder.layers.26.mlp.fc1.weight", "visual.layers.5.proj.weight"})
        EXPECT_FALSE(one.contains(name)) << name;
    EXPECT_FALSE(unknown.contains("model.layers.2.mlp.up_proj.weight"));
    EXPECT_TRUE(unknown.contains("mtp.layers.0.mlp.up_proj.weight"));
}

}  // namespace
}  // namespace nibble::test
