// Compares logits with those of transformers (FP32). The numbers are not made by tests/oracles; see the golden set's
// README.
#include "model/models.h"

namespace nibble::test {
namespace {

struct Expected {
    std::vector<std::vector<int32_t>> texts;
    std::vector<float> logits;
};

Expected read_expected(const std::filesystem::path& path, std::string_view tensor) {
    Expected e;
    const auto file = SafetensorsFile::open(path);
    EXPECT_TRUE(file.ok()) << file.error().message();
    if (!file.ok()) return e;
    e.texts = golden_texts(path);
    const TensorRecord* logits = file->find(tensor);
    EXPECT_TRUE(logits);
    if (!logits) return e;
    e.logits.resize(logits->data.size() / 4);
    std::memcpy(e.logits.data(), logits->data.data(), logits->data.size());
    return e;
}

// Returns the largest difference relative to the largest logit.
double relative_difference(const std::vector<float>& a, const std::vector<float>& b) {
    if (a.size() != b.size()) return INFINITY;
    double difference = 0, largest = 0;
    for (size_t i = 0; i < a.size(); ++i) {
        difference = std::max(difference, std::fabs(double{a[i]} - b[i]));
        largest = std::max(largest, std::fabs(double{b[i]}));
        if (a[i] != a[i]) return INFINITY;
    }
    return difference / largest;
}

// Returns the same per row of `vocab` logits, ascending: a router that chooses another expert changes whole rows.
std::vector<double> row_differences(const std::vector<float>& a, const std::vector<float>& b, int64_t vocab) {
    double largest = 0;
    for (const float x : b) largest = std::max(largest, std::fabs(double{x}));
    std::vector<double> rows(a.size() / static_cast<size_t>(vocab));
    for (size_t i = 0; i < a.size(); ++i) {
        double& row = rows[i / static_cast<size_t>(vocab)];
        row = std::max(row, std::fabs(double{a[i]} - b[i]) / largest);
    }
    std::sort(rows.begin(), rows.end());
    return rows;
}

struct Case {
    std::string checkpoint, expected, tensor;
    int flips = 0;  // rows of the BF16 pass in which a router may choose another expert
};

void PrintTo(const Case& c, std::ostream* out) { *out << c.checkpoint << " " << c.tensor; }

class Golden : public testing::TestWithParam<Case> {};

TEST_P(Golden, LogitsEqualTransformers) {
    const std::filesystem::path root = test_data("golden");
    const Expected expected = read_expected(root / GetParam().expected, GetParam().tensor);
    ThreadPool pool(2);
    for (const Compute compute : {Compute::f32, Compute::bf16}) {
        ModelOptions options;
        options.compute = compute;
        options.quantize_activations = false;
        const auto model = Model::load(open_checkpoint(root / GetParam().checkpoint), options, pool);
        ASSERT_TRUE(model.ok()) << model.error().message();
        const std::vector<float> logits = all_logits(*model, expected.texts);
        const double difference = relative_difference(logits, expected.logits);
        if (compute == Compute::f32) {
            EXPECT_LT(difference, 1e-4);
        } else {
            ASSERT_TRUE(std::isfinite(difference));
            const std::vector<double> rows = row_differences(logits, expected.logits, model->config().vocab);
            EXPECT_LT(rows[rows.size() / 2], 0.01);
            EXPECT_LT(rows[rows.size() - 1 - static_cast<size_t>(GetParam().flips)], 0.03);
        }
        RecordProperty(compute == Compute::f32 ? "f32" : "bf16", std::to_string(difference));
        std::printf("%s %s: %.2g of the largest logit\n", GetParam().checkpoint.c_str(),
                    compute == Compute::f32 ? "f32" : "bf16", difference);
    }
}

Case model(const std::string& name, const std::string& tensor = "logits") {
    return {"models/" + name, "models/" + name + "/expect.safetensors", tensor};
}
// In BF16, routing scores sometimes change by more than the difference of two experts; transformers' own BF16 pass does
// the same in other rows (golden/README.md).
Case routed(const std::string& name, const std::string& tensor = "logits") {
    Case c = model(name, tensor);
    c.flips = 2;
    return c;
}
Case compressed(const std::string& name) {
    return {"compressed-tensors/" + name, "compressed-tensors/" + name + "/expect.safetensors", "logits"};
}

INSTANTIATE_TEST_SUITE_P(Models, Golden,
                         testing::Values(model("llama"), model("llama-rope3"), model("qwen2"), model("qwen3"),
                                         routed("mixtral"), routed("qwen3_moe"), routed("deepseek_v3"),
                                         routed("nemotron_h", "logits_dt_limit_0")));
INSTANTIATE_TEST_SUITE_P(
    Dialects, Golden,
    testing::Values(compressed("nvfp4a16"), compressed("fp8_dynamic"), compressed("fp8_block"), compressed("mxfp4a16"),
                    Case{"gguf/llama-mixed.gguf", "gguf/llama-mixed.expect.safetensors", "logits_bf16_weights"}));

}  // namespace
}  // namespace nibble::test
