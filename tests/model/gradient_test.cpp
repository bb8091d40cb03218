// Compares the backward pass with PyTorch's autograd (golden/models/*/grad.json), and checks its properties.
#include "base/json.h"
#include "model/cpu/backward.h"
#include "model/models.h"

#include <algorithm>
#include <fstream>
#include <map>
#include <numeric>
#include <regex>

namespace nibble::test {
namespace {

class Sum : public GradientSink {
public:
    Status add(const std::string& tensor, const float* gradient, int64_t rows, int64_t cols) override {
        std::vector<float>& to = sums[tensor];
        to.resize(static_cast<size_t>(rows * cols));
        for (int64_t i = 0; i < rows * cols; ++i) to[i] += gradient[i];
        return Ok{};
    }
    std::map<std::string, std::vector<float>> sums;
};

// Lists nibble's tensors for a parameter of transformers, which fuses experts, with gate rows before up rows.
class Parameters {
public:
    Parameters(const ModelConfig& config, const Sum& sum) : config_(config), sums_(sum.sums) {}

    std::vector<float> find(std::string name, const std::vector<int64_t>& shape) const {
        if (config_.architecture == "nemotron_h") name = std::regex_replace(name, std::regex("^model\\."), "backbone.");
        if (config_.architecture == "mixtral")
            name = std::regex_replace(name, std::regex("\\.mlp\\."), ".block_sparse_moe.");
        const size_t at = name.find(".experts.");
        if (at == name.npos || name.ends_with(".weight")) return one(name, shape);
        const std::string prefix = name.substr(0, at + 9), kind = name.substr(at + 9);
        const bool mixtral = config_.architecture == "mixtral";
        std::vector<std::string> parts{kind};
        if (kind == "gate_up_proj") parts = {mixtral ? "w1" : "gate_proj", mixtral ? "w3" : "up_proj"};
        if (kind == "down_proj" && mixtral) parts = {"w2"};
        std::vector<float> all;
        for (int64_t e = 0; e < shape[0]; ++e)
            for (const std::string& part : parts) {
                const std::string tensor = prefix + std::to_string(e) + "." + part + ".weight";
                std::vector<float> some(static_cast<size_t>(shape[1] * shape[2]) / parts.size());
                if (sums_.contains(tensor)) some = sums_.at(tensor);  // an expert without tokens has no gradient
                all.insert(all.end(), some.begin(), some.end());
            }
        return all;
    }

private:
    std::vector<float> one(const std::string& name, const std::vector<int64_t>&) const {
        if (!sums_.contains(name)) return {};
        std::vector<float> values = sums_.at(name);
        if (name == config_.embedding && config_.head == config_.embedding) {
            const std::vector<float>& head = sums_.at("lm_head.weight");
            for (size_t i = 0; i < values.size(); ++i) values[i] += head[i];
        }
        return values;
    }

    const ModelConfig& config_;
    const std::map<std::string, std::vector<float>>& sums_;
};

class Backward : public testing::TestWithParam<std::string> {};

TEST_P(Backward, GradientsEqualAutograd) {
    const std::filesystem::path root = test_data("golden/models");
    const auto folder = root / GetParam();
    const auto checkpoint = open_checkpoint(folder);
    ThreadPool pool(2);
    auto config = model_config(*checkpoint);
    ASSERT_TRUE(config.ok()) << config.error().message();
    for (BlockConfig& block : config->blocks)  // transformers' PyTorch path clamps dt, and so do these gradients
        if (auto* mamba = std::get_if<MambaConfig>(&block.mixer)) mamba->dt_min = 0.001f;
    const WeightOptions weights{.compute = Compute::f32};
    WeightSource ends(*checkpoint, weights, pool, WeightSource::Mode::load);
    auto work = Workspace::create(Compute::f32, {}, pool);
    const auto embedding = Embedding::load(*config, ends);
    const auto head = Head::load(*config, ends);
    ASSERT_TRUE(work.ok() && embedding.ok() && head.ok());
    Sum sum;
    const auto loss = backward(*config, *embedding, *head, streamed_blocks(*checkpoint, *config, weights, pool),
                               golden_texts(folder / "expect.safetensors"), {}, *work, nullptr, &sum);
    ASSERT_TRUE(loss.ok()) << loss.error().message();

    std::ifstream in(folder / "grad.json");
    const Json want = Json::parse(in);
    EXPECT_NEAR(loss->mean(), want["loss"].get<double>(), 1e-5);
    const Parameters parameters(*config, sum);
    double worst = 0;
    for (const auto& [name, p] : want["parameters"].items()) {
        const std::vector<float> got = parameters.find(name, p["shape"].get<std::vector<int64_t>>());
        double l2 = 0, total = 0;
        for (const float x : got) l2 += double{x} * x, total += x;
        const double norm = p["l2"].get<double>(), bound = 1e-4 * norm;
        EXPECT_NEAR(std::sqrt(l2), norm, bound) << name;
        EXPECT_NEAR(total, p["sum"].get<double>(), bound * std::sqrt(double(got.size()))) << name;
        const auto values = p["values"].get<std::vector<double>>();
        const size_t stride = p["stride"].get<size_t>();
        for (size_t i = 0; i < values.size(); ++i) {
            ASSERT_LT(i * stride, got.size()) << name;
            EXPECT_NEAR(got[i * stride], values[i], bound) << name << " " << i;
            worst = std::max(worst, std::abs(got[i * stride] - values[i]) / norm);
        }
    }
    std::printf("%s: %.2g of a parameter's norm\n", GetParam().c_str(), worst);
}

INSTANTIATE_TEST_SUITE_P(Models, Backward,
                         testing::Values("llama", "llama-rope3", "qwen2", "qwen3", "mixtral", "qwen3_moe",
                                         "deepseek_v3", "nemotron_h"));

// An observer that records one number per row and linear.
class Rows : public Observer {
public:
    Status input(const Linear& linear, const float* x, int64_t rows, int64_t cols,
                 std::span<const int32_t> batch_rows) override {
        EXPECT_TRUE(batch_rows.empty() || std::ssize(batch_rows) == rows);
        last_ = &linear;
        inputs[linear.name] += std::accumulate(x, x + rows * cols, 0.0);
        return Ok{};
    }
    Status kv(const std::string&, const float*, const float*, int64_t, int64_t, int64_t) override { return Ok{}; }
    Status output_gradient(const Linear& linear, const float* g, int64_t rows, int64_t cols,
                           std::span<const int32_t>) override {
        EXPECT_EQ(last_, &linear);
        std::vector<float>& all = gradients[linear.name];
        all.insert(all.end(), g, g + rows * cols);
        return Ok{};
    }
    std::map<std::string, double> inputs;
    std::map<std::string, std::vector<float>> gradients;

private:
    const Linear* last_ = nullptr;
};

// Gradients do not depend on threads, batches, or which blocks keep their inputs.
TEST(Backward, PartitionsDoNotChangeBits) {
    const std::filesystem::path root = test_data("golden/models");
    for (const char* name : {"qwen3_moe", "nemotron_h", "deepseek_v3"}) {
        const auto texts = golden_texts(root / name / "expect.safetensors");
        std::map<std::string, std::vector<float>> first;
        for (const auto& [threads, batch, memory] :
             {std::tuple{1, 4096, int64_t{1} << 30}, std::tuple{3, 48, int64_t{1} << 30},
              std::tuple{3, 4096, int64_t{1}}}) {
            ThreadPool pool(threads);
            ModelOptions options;
            options.compute = Compute::f32;
            const auto model = Model::load(open_checkpoint(root / name), options, pool);
            ASSERT_TRUE(model.ok()) << model.error().message();
            Rows rows;
            const auto loss =
                backward(model->config(), model->embedding(), model->head(), resident_blocks(*model), texts,
                         {.sampled = PhiloxStream{.seed = 1, .role = 2},
                          .batch_tokens = batch,
                          .memory = memory,
                          .scratch = std::filesystem::temp_directory_path()},
                         model->workspace(), &rows, nullptr);
            ASSERT_TRUE(loss.ok()) << loss.error().message();
            EXPECT_EQ(loss->count, 96);
            EXPECT_GT(loss->mean(), 0);
            if (first.empty()) first = rows.gradients;
            for (const auto& [linear, g] : first) {
                ASSERT_EQ(g.size(), rows.gradients[linear].size()) << linear;
                EXPECT_EQ(std::memcmp(g.data(), rows.gradients[linear].data(), 4 * g.size()), 0) << linear;
            }
        }
        EXPECT_GT(first.size(), 10u);
    }
}

// With Compute::bf16, forward values are rounded but gradients are not; they stay close to those of FP32.
TEST(Backward, Bf16StaysNearF32) {
    const std::filesystem::path root = test_data("golden/models");
    for (const char* name : {"llama", "qwen3", "deepseek_v3"}) {
        const auto texts = golden_texts(root / name / "expect.safetensors");
        ThreadPool pool(2);
        std::map<std::string, std::vector<float>> gradients[2];
        for (const Compute compute : {Compute::f32, Compute::bf16}) {
            ModelOptions options;
            options.compute = compute;
            const auto model = Model::load(open_checkpoint(root / name), options, pool);
            ASSERT_TRUE(model.ok()) << model.error().message();
            Sum sum;
            ASSERT_TRUE(backward(model->config(), model->embedding(), model->head(), resident_blocks(*model), texts, {},
                                 model->workspace(), nullptr, &sum)
                            .ok());
            gradients[compute == Compute::bf16] = sum.sums;
        }
        for (const auto& [tensor, exact] : gradients[0]) {
            const std::vector<float>& near = gradients[1].at(tensor);
            double product = 0, a = 0, b = 0;
            for (size_t i = 0; i < exact.size(); ++i) {
                product += double{exact[i]} * near[i];
                a += double{exact[i]} * exact[i];
                b += double{near[i]} * near[i];
            }
            EXPECT_GT(product / std::sqrt(a * b), 0.98) << name << " " << tensor;
        }
    }
}

// Labels drawn from the model follow its distribution: the mean of p - onehot over the draws tends to zero.
TEST(Backward, SampledLabelsFollowTheModel) {
    const std::filesystem::path root = test_data("golden/models");
    ThreadPool pool(2);
    ModelOptions options;
    options.compute = Compute::f32;
    const auto model = Model::load(open_checkpoint(root / "llama"), options, pool);
    ASSERT_TRUE(model.ok()) << model.error().message();
    const int64_t n = model->config().hidden, draws = 4000;
    std::vector<float> x(static_cast<size_t>(draws * n)), dx(x.size());
    for (size_t i = 0; i < x.size(); ++i) x[i] = std::sin(static_cast<float>(i % static_cast<size_t>(n)));
    Head::Labels labels{.sampled = PhiloxStream{.seed = 5}};
    Rows rows;
    const auto loss = model->head().backward(x.data(), draws, labels, dx.data(), model->workspace(), &rows, nullptr);
    ASSERT_TRUE(loss.ok());
    const std::vector<float>& g = rows.gradients.at(model->head().linear().name);
    const int64_t vocab = model->config().vocab;
    for (int64_t v = 0; v < vocab; ++v) {
        double mean = 0, p = 0;
        for (int64_t i = 0; i < draws; ++i) mean += g[i * vocab + v] / double(draws);
        for (int64_t i = 0; i < draws && p <= 0; ++i) p = g[i * vocab + v];  // uses a row in which v was not drawn
        EXPECT_NEAR(mean, 0, 5 * std::sqrt(p * (1 - p) / double(draws))) << v;
    }
}

}  // namespace
}  // namespace nibble::test
