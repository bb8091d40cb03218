// Every family that the engine supports in addition to those of golden/models, on a tiny reference model: logits of
// transformers, equal bits for any chunking, a description that lists the checkpoint's tensors, and gradients that
// equal the slopes of the loss.
#include "architecture/tensor_list.h"
#include "checkpoint/modules.h"
#include "model/cpu/backward.h"
#include "model/cpu/trainable.h"
#include "model/family_folders.h"
#include "model/fewer_tensors.h"
#include "model/models.h"
#include "model/parameters.h"

#include <algorithm>
#include <map>

namespace nibble::test {
namespace {

template <class T>
std::vector<T> numbers_of(const std::filesystem::path& path, std::string_view tensor) {
    const auto file = SafetensorsFile::open(path);
    EXPECT_TRUE(file.ok()) << file.error().message();
    const TensorRecord* record = file.ok() ? file->find(tensor) : nullptr;
    EXPECT_TRUE(record) << tensor;
    std::vector<T> numbers(record ? record->data.size() / sizeof(T) : 0);
    if (record) std::memcpy(numbers.data(), record->data.data(), record->data.size());
    return numbers;
}

struct FamilyGradients : GradientSink {
    Status add(const std::string& tensor, const float* gradient, int64_t rows, int64_t cols) override {
        std::vector<float>& to = sums[tensor];
        to.resize(static_cast<size_t>(rows * cols));
        for (int64_t i = 0; i < rows * cols; ++i) to[size_t(i)] += gradient[i];
        return Ok{};
    }
    std::map<std::string, std::vector<float>> sums;
};

// Returns the mean cross-entropy of the next tokens in FP64.
double loss_of(const Model& model, const std::vector<std::vector<int32_t>>& texts) {
    const std::vector<float> logits = all_logits(model, texts);
    const auto vocab = static_cast<size_t>(model.config().vocab);
    double sum = 0;
    size_t count = 0, row = 0;
    for (const auto& text : texts)
        for (size_t t = 0; t < text.size(); ++t, ++row) {
            if (t + 1 == text.size()) continue;
            const std::span p(logits.data() + row * vocab, vocab);
            const double most = *std::max_element(p.begin(), p.end());
            double total = 0;
            for (const float x : p) total += std::exp(x - most);
            sum -= p[size_t(text[t + 1])] - most - std::log(total);
            ++count;
        }
    return sum / static_cast<double>(count);
}

class Families : public testing::TestWithParam<std::string> {
protected:
    std::filesystem::path folder() const { return family_root() / GetParam(); }
    std::vector<std::vector<int32_t>> texts() const { return golden_texts(folder() / "expect.safetensors"); }
    Result<Model> load(ThreadPool& pool, Compute compute = Compute::f32) const {
        ModelOptions options;
        options.compute = compute;
        return Model::load(open_checkpoint(folder()), options, pool);
    }
};

TEST_P(Families, LogitsEqualTransformers) {
    ThreadPool pool(2);
    const auto model = load(pool);
    ASSERT_TRUE(model.ok()) << model.error().message();
    const auto expect = folder() / "expect.safetensors";
    const auto want = numbers_of<float>(expect, "logits");
    const auto positions = numbers_of<int64_t>(expect, "positions");
    const auto texts = this->texts();
    const std::vector<float> got = all_logits(*model, texts);
    const auto vocab = static_cast<size_t>(model->config().vocab);
    ASSERT_EQ(want.size(), texts.size() * positions.size() * vocab);
    double difference = 0, largest = 0;
    for (size_t b = 0; b < texts.size(); ++b)
        for (size_t i = 0; i < positions.size(); ++i)
            for (size_t v = 0; v < vocab; ++v) {
                const double w = want[(b * positions.size() + i) * vocab + v];
                const double g = got[(b * texts[b].size() + size_t(positions[i])) * vocab + v];
                ASSERT_TRUE(std::isfinite(g));
                difference = std::max(difference, std::abs(g - w));
                largest = std::max(largest, std::abs(w));
            }
    EXPECT_LT(difference, 2e-5 * largest);
    std::printf("%s: %.2g of the largest logit\n", GetParam().c_str(), difference / largest);
}

TEST_P(Families, ChunksGiveTheSameBits) {
    ThreadPool pool(2);
    for (const Compute compute : {Compute::f32, Compute::bf16}) {
        const auto model = load(pool, compute);
        ASSERT_TRUE(model.ok()) << model.error().message();
        const auto text = texts()[0];
        const std::vector<float> whole = all_logits(*model, {text});
        const auto kv = model->make_pool(256, 2);
        ASSERT_TRUE(kv.ok());
        Sequence sequence = (*kv)->sequence();
        std::vector<float> pieces;
        const auto n = static_cast<int64_t>(text.size());
        for (int64_t at = 0, step = 1; at < n; step = step * 3 % 11) {
            const int64_t count = std::min(step, n - at);
            const Batch batch({{&sequence, std::span(text).subspan(size_t(at), size_t(count)), 0}});
            std::vector<float> logits(static_cast<size_t>(count * model->config().vocab));
            const Status status = model->forward(batch, logits);
            ASSERT_TRUE(status.ok()) << status.error().message();
            pieces.insert(pieces.end(), logits.begin(), logits.end());
            at += count;
        }
        ASSERT_EQ(pieces.size(), whole.size());
        EXPECT_EQ(std::memcmp(pieces.data(), whole.data(), whole.size() * sizeof(float)), 0);
    }
}

// Two sequences in one batch: one continues from a shared tile and copied states, as from a prefix cache, and is forked
// after one more token.
TEST_P(Families, ACachedPrefixAndAForkGiveTheSameBits) {
    ThreadPool pool(2);
    const auto model = load(pool);
    ASSERT_TRUE(model.ok()) << model.error().message();
    std::vector<int32_t> text = texts()[0];
    const std::vector<int32_t> other = texts()[1];
    text.insert(text.end(), other.begin(), other.end());
    const std::vector<float> whole = all_logits(*model, {text}), alone = all_logits(*model, {other});
    const auto kv = model->make_pool(1024, 5);
    ASSERT_TRUE(kv.ok());
    const auto vocab = static_cast<size_t>(model->config().vocab);
    const auto run = [&](std::vector<Segment> segments) {
        int64_t rows = 0;
        for (const Segment& segment : segments) rows += std::ssize(segment.tokens);
        std::vector<float> logits(static_cast<size_t>(rows) * vocab);
        const Status status = model->forward(Batch(std::move(segments)), logits);
        EXPECT_TRUE(status.ok()) << status.error().message();
        return logits;
    };
    const auto expect_rows = [&](std::span<const float> got, const std::vector<float>& want, size_t first) {
        EXPECT_EQ(std::memcmp(got.data(), want.data() + first * vocab, got.size_bytes()), 0) << "from row " << first;
    };
    Sequence first = (*kv)->sequence(), second = (*kv)->sequence(), third = (*kv)->sequence();
    run({{&first, std::span(text).first(kv_page_tokens), 0}});
    const TilePages tile = first.share(0);
    const bool serves = tile.serves(std::ssize(text) - kv_page_tokens);
    ASSERT_TRUE(serves);
    second.adopt(tile);
    if ((*kv)->recurrent()) {
        const auto states = first.copy_states();
        ASSERT_TRUE(states.ok()) << states.error().message();
        ASSERT_TRUE(second.restore(*states).ok());
    }
    const std::span<const int32_t> rest = std::span(text).subspan(kv_page_tokens);
    const std::vector<float> both = run({{&second, rest.first(1), 0}, {&third, other, 0}});
    expect_rows(std::span(both).first(vocab), whole, kv_page_tokens);
    expect_rows(std::span(both).subspan(vocab), alone, 0);
    auto fork = second.fork();
    ASSERT_TRUE(fork.ok()) << fork.error().message();
    run({{&second, rest.subspan(1, 5), 0}});
    expect_rows(run({{&*fork, rest.subspan(1), 0}}), whole, kv_page_tokens + 1);
}

TEST_P(Families, EveryListedWeightIsMissedByItsName) { expect_weights_are_missed(folder()); }

TEST_P(Families, TheDescriptionListsTheTensors) {
    const auto checkpoint = open_checkpoint(folder());
    const auto config = model_config(*checkpoint);
    ASSERT_TRUE(config.ok()) << config.error().message();
    std::map<std::string, std::vector<int64_t>> have, list;
    for (const CheckpointTensor& t : checkpoint->tensors())
        if (!is_outside_text_model(t.name)) have.emplace(t.name, t.shape);
    for (const TensorEntry& t : tensor_list(*config)) list.emplace(t.name, t.shape);
    for (auto& [name, shape] : have)
        if (name.ends_with("e_score_correction_bias")) shape = {shape.back()};  // [1, experts] in ernie4_5_moe
    EXPECT_EQ(list, have);
}

// A model without a backward pass says why, and so does the pass itself.
void refuses_gradients(const ModelConfig& config, const Status& why) {
    EXPECT_NE(why.error().message().find("a backward pass through"), std::string::npos);
    size_t refusing = config.logit_cap > 0;
    for (const BlockConfig& block : config.blocks) refusing += !check_backward(block).ok();
    EXPECT_GT(refusing, 0u);
    std::printf("%s\n", why.error().message().c_str());
}

// Returns the longest text of a backward pass: with sparse attention, that in which every key is chosen.
size_t trainable_tokens(const ModelConfig& config) {
    int64_t most = INT64_MAX;
    for (const BlockConfig& block : config.blocks) {
        if (const auto* a = std::get_if<LatentAttentionConfig>(&block.mixer); a && a->indexer)
            most = std::min(most, a->indexer->dense_tokens());
        if (const auto* a = std::get_if<AttentionConfig>(&block.mixer); a && a->indexer)
            most = std::min(most, a->indexer->dense_tokens());
    }
    return static_cast<size_t>(most);
}

// Each parameter is moved along its gradient; the loss must change by the gradient's norm times the distance.
TEST_P(Families, GradientsEqualDifferencesOfTheLoss) {
    ThreadPool pool(2);
    const auto checkpoint = open_checkpoint(folder());
    const auto config = model_config(*checkpoint);
    ASSERT_TRUE(config.ok());
    if (const Status trainable = check_backward(*config); !trainable.ok()) return refuses_gradients(*config, trainable);
    const auto parameters = Parameters::copy(*checkpoint, DType::f32, pool);
    ASSERT_TRUE(parameters.ok()) << parameters.error().message();
    ModelOptions options;
    options.compute = Compute::f32;
    auto model = Model::load(*parameters, options, pool);
    ASSERT_TRUE(model.ok()) << model.error().message();
    auto texts = this->texts();
    for (auto& text : texts) text.resize(std::min(text.size(), trainable_tokens(*config)));
    FamilyGradients sum;
    const auto loss = backward(*config, model->embedding(), model->head(), resident_blocks(*model), texts, {},
                               model->workspace(), nullptr, &sum);
    ASSERT_TRUE(loss.ok()) << loss.error().message();
    EXPECT_NEAR(loss->mean(), loss_of(*model, texts), 1e-5);
    if (config->head == config->embedding)
        for (size_t i = 0; i < sum.sums[config->embedding].size(); ++i)
            sum.sums[config->embedding][i] += sum.sums["lm_head.weight"][i];
    size_t moved = 0;
    for (const TensorEntry& t : tensor_list(*config)) {
        if (!sum.sums.contains(t.name)) continue;  // an expert without tokens, or the bias of a router's choice
        const std::vector<float>& g = sum.sums[t.name];
        const auto id = (*parameters)->id(t.name);
        ASSERT_TRUE(id.ok());
        const std::span<float> w = (*parameters)->master(*id);
        ASSERT_EQ(g.size(), w.size()) << t.name;
        const std::vector<float> before(w.begin(), w.end());
        double g2 = 0, w2 = 0;
        for (size_t i = 0; i < g.size(); ++i) g2 += double{g[i]} * g[i], w2 += double{before[i]} * before[i];
        if (g2 == 0) continue;
        // The loss is discontinuous where a router changes its choice, so several distances are tried.
        double slope = 0, bound = 0;
        for (const double share : {1e-4, 2e-5}) {
            const double way = share * std::sqrt(w2 / g2);
            double losses[2];
            for (const int side : {0, 1}) {
                for (size_t i = 0; i < g.size(); ++i) w[i] = static_cast<float>(before[i] + (side ? way : -way) * g[i]);
                (*parameters)->publish(pool);
                ASSERT_TRUE(model->renew().ok());
                losses[side] = loss_of(*model, texts);
            }
            slope = (losses[1] - losses[0]) / (2 * way);
            bound = 0.03 * g2 + 5e-7 / way;
            if (std::abs(slope - g2) <= bound) break;
        }
        std::copy(before.begin(), before.end(), w.begin());
        EXPECT_NEAR(slope, g2, bound) << t.name;
        ++moved;
    }
    EXPECT_GT(moved, config->blocks.size() * 3);
}

// Mistral 3 is the name of two text models inside a multimodal one; the inner model_type distinguishes them.
TEST(MultimodalFamilies, TheTextConfigDeterminesTheFamily) {
    const auto text = open_checkpoint(family_root() / "ministral3")->config();
    const Json config{{"model_type", "mistral3"}, {"text_config", text}, {"vision_config", Json::object()}};
    const auto inner = model_config(config), alone = model_config(text);
    ASSERT_TRUE(inner.ok()) << inner.error().message();
    ASSERT_TRUE(alone.ok());
    EXPECT_EQ(inner->architecture, "ministral3");
    EXPECT_EQ(inner->blocks[0].prefix, "language_model.model.layers.0.self_attn");
    EXPECT_EQ(std::get<AttentionConfig>(inner->blocks[0].mixer).query_beta,
              std::get<AttentionConfig>(alone->blocks[0].mixer).query_beta);
    EXPECT_GT(std::get<AttentionConfig>(inner->blocks[0].mixer).query_period, 0);
}

INSTANTIATE_TEST_SUITE_P(All, Families,
                         testing::Values("cohere2", "deepseek_v32", "deepseek_v4", "dots1", "ernie4_5_moe", "exaone4",
                                         "falcon_h1", "gemma2", "gemma4_26b", "gemma4_31b", "gemma4_e", "glm4_moe",
                                         "glm4_moe_lite", "glm_moe_dsa", "gpt_oss", "granite", "granitemoe",
                                         "granitemoehybrid", "granitemoeshared", "hunyuan_v1_dense", "hunyuan_v1_moe",
                                         "kimi_linear", "lfm2", "lfm2_moe", "llama4_text", "mimo_v2_flash",
                                         "minimax_m2", "minimax_m3", "ministral3", "mistral4", "olmo2", "olmo3", "phi3",
                                         "phi3_longrope", "phimoe", "qwen3_5", "qwen3_5_moe", "qwen3_5_text",
                                         "qwen3_next", "qwen3_vl_moe", "seed_oss", "smollm3", "stablelm", "starcoder2",
                                         "step3p7"),
                         [](const auto& name) { return name.param; });

}  // namespace
}  // namespace nibble::test
