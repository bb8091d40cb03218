// Errors of loading inconsistent checkpoints and running models with NaNs; sequences and their memory.
#include "model/memory_checkpoint.h"
#include "model/models.h"

namespace nibble::test {
namespace {

std::string load_error(const std::shared_ptr<MemoryCheckpoint>& checkpoint, const ModelOptions& options = {}) {
    ThreadPool pool(1);
    const auto model = Model::load(checkpoint, options, pool);
    EXPECT_FALSE(model.ok());
    return model.ok() ? "" : model.error().message();
}

TEST(LoadModel, AMismatchOfConfigAndTensorsIsAnErrorThatNamesTheTensor) {
    auto c = small_checkpoint();
    c->remove("model.layers.1.mlp.up_proj.weight");
    EXPECT_EQ(load_error(c),
              "tensor 'model.layers.1.mlp.up_proj.weight' is missing: config.json says the model has it");
    c = small_checkpoint();
    c->tensor("model.layers.2.self_attn.k_proj.weight").shape = {16, 64};
    EXPECT_EQ(load_error(c),
              "tensor 'model.layers.2.self_attn.k_proj.weight' has shape [16, 64], config.json says [32, 32]");
    c = small_checkpoint();
    c->add("model.layers.0.self_attn.q_norm.weight", {16});
    EXPECT_NE(load_error(c).find("'model.layers.0.self_attn.q_norm.weight' belongs to no module"), std::string::npos);
    c = small_checkpoint();
    c->tensor("model.norm.weight").dtype = DType::i64;
    EXPECT_NE(load_error(c).find("'model.norm.weight' is I64"), std::string::npos);
    c = small_checkpoint();
    c->json()["tie_word_embeddings"] = true;
    EXPECT_NE(load_error(c).find("'lm_head.weight' belongs to no module"), std::string::npos);
    c = small_checkpoint();
    c->set("model.layers.1.input_layernorm.weight", 3, NAN);
    EXPECT_NE(load_error(c).find("'model.layers.1.input_layernorm.weight' holds nan"), std::string::npos);
    c = small_checkpoint();
    ModelOptions options;
    options.kv = KvFormat::fp8;
    EXPECT_NE(load_error(c, options).find("k_proj.k_scale"), std::string::npos);
    options = {};
    options.kernels = "mmx";
    EXPECT_NE(load_error(c, options).find("'mmx'"), std::string::npos);
}

TEST(LoadModel, BlocksOneByOneGiveTheBitsOfTheModel) {
    const auto c = small_checkpoint();
    ThreadPool pool(2);
    const auto model = Model::load(c, {}, pool);
    ASSERT_TRUE(model.ok()) << model.error().message();
    const std::vector<int32_t> text{1, 2, 3, 40, 5};
    const auto expected = all_logits(*model, {text});
    auto work = Workspace::create(Compute::bf16, {}, pool);
    ASSERT_TRUE(work.ok());
    const Batch batch({{nullptr, text, 0}});
    std::vector<float> x(5 * 32), logits(5 * 48);
    ASSERT_TRUE(model->embedding().forward(text, x.data(), *work).ok());
    for (size_t i = 0; i < model->config().blocks.size(); ++i) {
        const auto block = load_block(*c, model->config(), i, {}, pool);
        ASSERT_TRUE(block.ok()) << block.error().message();
        ASSERT_TRUE(block->forward(batch, x.data(), *work, nullptr).ok());
    }
    ASSERT_TRUE(model->head().forward(x.data(), 5, logits.data(), *work, nullptr).ok());
    EXPECT_EQ(logits, expected);
}

class Names : public Observer {
public:
    Status input(const Linear& linear, const float*, int64_t rows, int64_t cols, std::span<const int32_t>) override {
        seen.push_back(fmt::format("{} {}x{}", linear.name, rows, cols));
        return Ok{};
    }
    Status kv(const std::string& prefix, const float*, const float*, int64_t rows, int64_t k, int64_t) override {
        seen.push_back(fmt::format("{} kv {}x{}", prefix, rows, k));
        return Ok{};
    }
    Status output_gradient(const Linear&, const float*, int64_t, int64_t, std::span<const int32_t>) override {
        return fail("no backward pass here");
    }
    std::vector<std::string> seen;
};

TEST(Observers, SeeEveryLinearByName) {
    ThreadPool pool(1);
    const auto model = Model::load(small_checkpoint(), {}, pool);
    ASSERT_TRUE(model.ok());
    const std::vector<int32_t> text{1, 2, 3};
    std::vector<float> logits(48);
    Names names;
    ASSERT_TRUE(model->forward(Batch({{nullptr, text, 2}}), logits, &names).ok());
    ASSERT_EQ(names.seen.size(), 3u * 8 + 1);
    const std::vector<std::string> first{"model.layers.0.self_attn.q_proj 3x32", "model.layers.0.self_attn.k_proj 3x32",
                                         "model.layers.0.self_attn.v_proj 3x32", "model.layers.0.self_attn kv 3x32",
                                         "model.layers.0.self_attn.o_proj 3x64", "model.layers.0.mlp.gate_proj 3x32",
                                         "model.layers.0.mlp.up_proj 3x32",      "model.layers.0.mlp.down_proj 3x48"};
    EXPECT_TRUE(std::equal(first.begin(), first.end(), names.seen.begin()));
    EXPECT_EQ(names.seen.back(), "lm_head 1x32");
}

TEST(Forward, NanIsReportedWithLayerOperatorAndToken) {
    auto c = small_checkpoint();
    c->set("model.embed_tokens.weight", 9 * 32 + 1, NAN);
    ThreadPool pool(1);
    const auto run = [&](std::vector<int32_t> text) -> std::string {
        const auto model = Model::load(c, {}, pool);
        std::vector<float> logits(48);
        const Status status = model->forward(Batch({{nullptr, text, std::ssize(text) - 1}}), logits);
        return status.ok() ? "" : status.error().message();
    };
    EXPECT_EQ(run({4, 8, 2}), "");
    EXPECT_EQ(run({4, 9, 2}), "tensor 'model.embed_tokens.weight': row 9 (token 9) is not finite");
    c->set("model.layers.0.self_attn.v_proj.weight", 3, NAN);
    EXPECT_EQ(run({4, 8, 2}),
              "layer 0, attention (model.layers.0.self_attn): NaN in the output at position 0 (token 4, row 0 of the "
              "batch)");
    c->set("model.layers.0.self_attn.v_proj.weight", 3, 0.5f);
    c->set("model.layers.1.mlp.down_proj.weight", 5, INFINITY);
    const std::string error = run({4, 8, 2});
    EXPECT_EQ(error.find("layer 1, MLP (model.layers.1.mlp): "), 0u) << error;
}

TEST(Forward, BadBatchesAreErrors) {
    ThreadPool pool(1);
    const auto model = Model::load(small_checkpoint(), {}, pool);
    ASSERT_TRUE(model.ok());
    std::vector<float> logits(48);
    const auto error = [&](std::vector<Segment> segments, std::span<float> out) {
        const Status status = model->forward(Batch(std::move(segments)), out);
        return status.ok() ? "" : status.error().message();
    };
    const std::vector<int32_t> one{1}, wrong{48}, negative{-1};
    EXPECT_EQ(error({{nullptr, one, 0}}, logits), "");
    EXPECT_EQ(error({{nullptr, wrong, 0}}, logits), "token id 48 is not in the vocabulary of 48");
    EXPECT_EQ(error({{nullptr, negative, 0}}, logits), "token id -1 is not in the vocabulary of 48");
    EXPECT_NE(error({{nullptr, {}, 0}}, {}), "");
    EXPECT_NE(error({{nullptr, one, 0}}, std::span(logits).first(47)), "");
    const auto kv = make_pool(*model, 64);
    Sequence s = kv->sequence();
    EXPECT_NE(error({{&s, one, 0}, {&s, one, 1}}, logits), "");
}

TEST(Sequences, RunningOutOfPagesIsAnErrorThatChangesNothing) {
    ThreadPool pool(1);
    const auto model = Model::load(small_checkpoint(), {}, pool);
    ASSERT_TRUE(model.ok());
    const auto kv = make_pool(*model, 128);
    EXPECT_EQ(kv->pages(), 3 * 2);
    Sequence a = kv->sequence();
    const std::vector<int32_t> text(100, 1), more(29, 2);
    ASSERT_TRUE(model->forward(Batch({{&a, text, 100}}), {}).ok());
    EXPECT_EQ(kv->free_pages(), 0);
    const Status full = model->forward(Batch({{&a, more, 29}}), {});
    ASSERT_FALSE(full.ok());
    EXPECT_EQ(full.error().message(), "the KV cache is full: 3 pages needed for 29 more tokens, 0 of 6 free");
    EXPECT_EQ(a.position(), 100);
    EXPECT_FALSE(a.fork().ok());
    ASSERT_TRUE(model->forward(Batch({{&a, std::span(more).first(28), 28}}), {}).ok());
    {
        const auto fork = a.fork();
        ASSERT_TRUE(fork.ok());
    }  // position 128: full pages only
    a = kv->sequence();
    EXPECT_EQ(kv->free_pages(), 6);
}

TEST(Sequences, WindowsFreeTheirPages) {
    Json config = small_llama();
    config["model_type"] = "mistral";
    config["sliding_window"] = 40;
    ThreadPool pool(2);
    const auto model = Model::load(small_checkpoint(config), {}, pool);
    ASSERT_TRUE(model.ok()) << model.error().message();
    std::vector<int32_t> text;
    for (int i = 0; i < 400; ++i) text.push_back(i * 7 % 48);
    const auto whole = all_logits(*model, {text});
    // Memory for 192 tokens is sufficient for texts of any length in small chunks.
    const auto kv = make_pool(*model, 192);
    for (const size_t chunk : {1u, 50u, 64u}) {
        Sequence s = kv->sequence();
        std::vector<float> logits;
        for (size_t i = 0; i < text.size(); i += chunk) {
            const auto part = std::span(text).subspan(i, std::min(chunk, text.size() - i));
            std::vector<float> out(part.size() * 48);
            const Status status = model->forward(Batch({{&s, part, 0}}), out);
            ASSERT_TRUE(status.ok()) << status.error().message();
            logits.insert(logits.end(), out.begin(), out.end());
        }
        EXPECT_EQ(logits, whole) << "chunks of " << chunk;
        EXPECT_GE(kv->free_pages(), 3) << "old pages were kept";
    }
    // The window has an effect: without it the last logits differ.
    const auto all = Model::load(small_checkpoint(), {}, pool);
    ASSERT_TRUE(all.ok());
    EXPECT_NE(all_logits(*all, {text}), whole);
}

TEST(Sequences, ForkedPagesAreShared) {
    ThreadPool pool(1);
    const auto model = Model::load(small_checkpoint(), {}, pool);
    ASSERT_TRUE(model.ok());
    const auto kv = make_pool(*model, 64 * 10);
    Sequence a = kv->sequence();
    const std::vector<int32_t> text(130, 1);
    ASSERT_TRUE(model->forward(Batch({{&a, text, 130}}), {}).ok());
    const int64_t before = kv->free_pages();
    const auto fork = a.fork();
    ASSERT_TRUE(fork.ok());
    EXPECT_EQ(before - kv->free_pages(), 3);  // one partial page per layer, not three
}

}  // namespace
}  // namespace nibble::test
