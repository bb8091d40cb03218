// Layers for multi-token prediction: their description in config.json, their logits compared with numpy
// (tests/oracles/mtp_peer.py), and required tensors.
#include "model/made_up_model.h"
#include "model/models.h"

namespace nibble::test {
namespace {

std::vector<float> made_up(const std::string& name, int64_t n) {
    uint32_t state = 12345;
    for (size_t i = 0; i < name.size(); ++i) state += static_cast<uint8_t>(name[i]) * static_cast<uint32_t>(i + 1);
    std::vector<float> values;
    for (int64_t i = 0; i < n; ++i) {
        state = state * 1664525u + 1013904223u;
        double x = (state >> 8) / 16777216.0 - 0.5;
        if (name.ends_with("norm.weight"))
            x += 1;
        else
            x *= name.find("embed") != std::string::npos ? 2.0 : 0.5;
        values.push_back(bf16_to_float(bf16_from_float(static_cast<float>(x))));
    }
    return values;
}

std::shared_ptr<MemoryCheckpoint> peer_checkpoint(const Json& config) {
    auto checkpoint = std::make_shared<MemoryCheckpoint>(config);
    const auto model = model_config(config);
    EXPECT_TRUE(model.ok()) << model.error().message();
    ModelTensors(*model, [&](const std::string& name, std::vector<int64_t> shape) {
        checkpoint->add(name, std::move(shape));
        const CheckpointTensor& t = checkpoint->tensor(name);
        const auto values = made_up(name, t.rows() * t.cols());
        for (size_t i = 0; i < values.size(); ++i) checkpoint->set(name, i, values[i]);
    });
    return checkpoint;
}

Result<Model> load_predicting(std::shared_ptr<const Checkpoint> checkpoint, ThreadPool& pool,
                              Compute compute = Compute::bf16) {
    ModelOptions options;
    options.compute = compute;
    options.prediction = true;
    return Model::load(std::move(checkpoint), options, pool);
}

// Processes a text in pieces of several lengths, then drafts; each draft row uses the output of the one before.
TEST(Predictor, LogitsEqualNumpys) {
    const auto json = read_json_file(test_data("mtp_peers.json"));
    ASSERT_TRUE(json.ok()) << json.error().message();
    const auto tokens = (*json)["tokens"].get<std::vector<int32_t>>();
    const auto text = (*json)["text"].get<int64_t>();
    ThreadPool threads(2);
    for (const Json& peer : (*json)["models"])
        for (const Compute compute : {Compute::f32, Compute::bf16}) {
            SCOPED_TRACE(peer["config"]["model_type"]);
            const auto model = load_predicting(peer_checkpoint(peer["config"]), threads, compute);
            ASSERT_TRUE(model.ok()) << model.error().message();
            const int64_t n = model->config().hidden, vocab = model->config().vocab;
            const std::vector<float> hidden = made_up("hidden", text * n);
            const auto pool = model->make_pool(128, 1);
            ASSERT_TRUE(pool.ok()) << pool.error().message();
            Sequence sequence = (*pool)->sequence();
            ASSERT_TRUE(sequence.reserve(std::ssize(tokens)).ok());
            std::vector<float> logits(tokens.size() * size_t(vocab)), handed_on, normed;
            Workspace& work = model->workspace();
            const auto run = [&](int64_t position, int64_t rows, const float* from) {
                const Batch batch({{.sequence = &sequence,
                                    .tokens = std::span(tokens).subspan(size_t(position), size_t(rows)),
                                    .position = position}});
                std::vector<float> out(size_t(rows * n));
                normed.resize(size_t(rows * n));
                const Status done =
                    model->predictor()->forward(batch, from, model->embedding(), {out.data(), normed.data()}, work);
                EXPECT_TRUE(done.ok()) << (done.ok() ? "" : done.error().message());
                handed_on.assign(out.end() - n, out.end());
                EXPECT_TRUE(model->head()
                                .linear()
                                .forward(normed.data(), rows, logits.data() + position * vocab, work, nullptr)
                                .ok());
            };
            for (int64_t at = 0, piece = 1; at < text; at += piece, piece = std::min(2 * piece + 3, text - at))
                run(at, piece, hidden.data() + at * n);
            for (int64_t at = text; at < std::ssize(tokens); ++at) {
                const std::vector<float> from = handed_on;
                run(at, 1, from.data());
            }
            double difference = 0, largest = 0;
            for (size_t r = 0; r < peer["rows"].size(); ++r)
                for (size_t i = 0; i < size_t(vocab); ++i) {
                    const double want = peer["logits"][r][i];
                    largest = std::max(largest, std::fabs(want));
                    difference = std::max(difference,
                                          std::fabs(logits[peer["rows"][r].get<size_t>() * size_t(vocab) + i] - want));
                }
            std::printf("%s: %.2g of the largest logit\n", compute == Compute::f32 ? "f32" : "bf16",
                        difference / largest);
            EXPECT_LT(difference / largest, compute == Compute::f32 ? 1e-5 : 0.04);
        }
}

// predict() equals the predictor applied to the states of the last batch, and chooses a token for each wanted row.
TEST(Predictor, PredictsFromTheStatesOfTheLastBatch) {
    ThreadPool threads(2);
    for (const Json& config :
         {predicting_deepseek(), predicting_deepseek_v32(), predicting_nemotron(), predicting_qwen3_5()}) {
        const auto checkpoint = made_up_model(config);
        const auto model = load_predicting(checkpoint, threads);
        ASSERT_TRUE(model.ok()) << model.error().message();
        EXPECT_TRUE(model->predicts());
        const auto pool = model->make_pool(256, 4);
        ASSERT_TRUE(pool.ok()) << pool.error().message();
        std::vector<int32_t> text;
        for (int i = 0; i < 40; ++i) text.push_back((i * 37 + 5) % 250);
        const auto predicted = [&](std::span<const int64_t> pieces) {
            Sequence s = (*pool)->sequence();
            std::vector<int32_t> drafted_tokens;
            for (int64_t at = 0; const int64_t piece : pieces) {
                std::vector<float> logits(size_t(model->config().vocab));
                const auto rows = std::span(text).subspan(size_t(at), size_t(piece));
                EXPECT_TRUE(model->evaluate(Batch({{&s, rows, piece - 1}}), logits).ok());
                std::vector<int32_t> places;
                for (int32_t i = 0; i < piece; ++i) places.push_back(i);
                std::vector<ChosenToken> chosen(size_t{1});
                const std::vector<TokenRequest> requests{{.params = {.temperature = 0}}};
                const Batch batch({{.sequence = &s,
                                    .tokens = std::span(text).subspan(size_t(at + 1), size_t(piece)),
                                    .logits_from = piece - 1,
                                    .position = at}});
                EXPECT_TRUE(model->predict(batch, places, false, requests, chosen).ok());
                drafted_tokens.assign(1, chosen[0].id);
                for (int draft = 0; draft < 3; ++draft) {  // applied to its own outputs
                    EXPECT_TRUE(s.reserve(draft + 1).ok());
                    const int32_t token = chosen[0].id, place = 0;
                    const Batch more({{.sequence = &s, .tokens = {&token, 1}, .position = at + piece + draft}});
                    EXPECT_TRUE(model->predict(more, {&place, 1}, true, requests, chosen).ok());
                    drafted_tokens.push_back(chosen[0].id);
                }
                at += piece;
            }
            EXPECT_EQ(s.position(), std::ssize(text) - 1) << "predict() moves no sequence";
            return drafted_tokens;
        };
        const auto whole = predicted(std::array{int64_t{39}});
        EXPECT_EQ(whole.size(), 4u);
        for (const int32_t id : whole) EXPECT_TRUE(id >= 0 && id < 256);
        EXPECT_EQ(predicted(std::array{int64_t{1}, int64_t{20}, int64_t{17}, int64_t{1}}), whole);
        std::vector<ChosenToken> none;
        Sequence s = (*pool)->sequence();
        ASSERT_TRUE(s.reserve(1).ok());
        const int32_t token = 3, place = 99;
        EXPECT_FALSE(model
                         ->predict(Batch({{.sequence = &s, .tokens = {&token, 1}, .logits_from = 1}}), {&place, 1},
                                   false, {}, none)
                         .ok());
    }
}

TEST(Predictor, IsDeclaredInConfigJson) {
    const auto deepseek = model_config(predicting_deepseek());
    ASSERT_TRUE(deepseek.ok() && deepseek->prediction);
    EXPECT_EQ(deepseek->blocks.size(), 4u);
    const PredictionConfig& d = *deepseek->prediction;
    EXPECT_EQ(d.projection, "model.layers.2.eh_proj");
    EXPECT_EQ(d.norm, "model.layers.2.shared_head.norm.weight");
    EXPECT_FALSE(d.hands_on_normed);
    ASSERT_EQ(d.blocks.size(), 2u);
    EXPECT_EQ(d.blocks[0].index, 4);
    EXPECT_EQ(d.blocks[1].prefix, "model.layers.2.mlp");
    EXPECT_TRUE(std::holds_alternative<MoeConfig>(d.blocks[1].mixer));

    const auto nemotron = model_config(predicting_nemotron());
    ASSERT_TRUE(nemotron.ok() && nemotron->prediction);
    const PredictionConfig& m = *nemotron->prediction;
    EXPECT_EQ(m.embedding_norm, "mtp.layers.0.enorm.weight");
    EXPECT_EQ(m.norm, "mtp.layers.1.final_layernorm.weight");
    EXPECT_TRUE(m.hands_on_normed);
    ASSERT_EQ(m.blocks.size(), 2u);
    EXPECT_EQ(m.blocks[1].index, 5);
    EXPECT_EQ(m.blocks[1].prefix, "mtp.layers.1.mixer");

    const auto qwen = model_config(predicting_qwen3_5());
    ASSERT_TRUE(qwen.ok() && qwen->prediction);
    EXPECT_EQ(qwen->prediction->projection, "mtp.fc");
    EXPECT_EQ(qwen->prediction->blocks[1].prefix, "mtp.layers.0.mlp");
    EXPECT_TRUE(qwen->prediction->hands_on_normed);

    Json named = predicting_nemotron();
    named.erase("mtp_hybrid_override_pattern");
    named["mtp_layers_block_type"] = {"attention", "moe"};
    const auto other = model_config(named);
    ASSERT_TRUE(other.ok() && other->prediction);
    EXPECT_EQ(other->prediction->blocks.size(), 2u);
    for (Json config : {predicting_deepseek(), predicting_nemotron()}) {
        config["num_nextn_predict_layers"] = 0;
        const auto none = model_config(config);
        ASSERT_TRUE(none.ok()) << none.error().message();
        EXPECT_FALSE(none->prediction);
        config["num_nextn_predict_layers"] = -1;
        const auto wrong = model_config(config);
        ASSERT_FALSE(wrong.ok());
        EXPECT_NE(wrong.error().message().find("num_nextn_predict_layers"), std::string::npos);
    }
    named["mtp_layers_block_type"] = {"attention", "convolution"};
    const auto wrong = model_config(named);
    ASSERT_FALSE(wrong.ok());
    EXPECT_NE(wrong.error().message().find("mtp_layers_block_type"), std::string::npos);
}

TEST(Predictor, IsLoadedOnlyOnRequest) {
    ThreadPool threads(2);
    for (const Json& config : {predicting_deepseek(), predicting_nemotron(), predicting_qwen3_5()}) {
        auto checkpoint = made_up_model(config);
        const auto without = Model::load(checkpoint, {}, threads), with = load_predicting(checkpoint, threads);
        ASSERT_TRUE(without.ok() && with.ok());
        EXPECT_FALSE(without->predicts());
        EXPECT_GT(with->states().size(), without->states().size());
        const std::vector<std::vector<int32_t>> texts{{1, 5, 9, 200, 7}};
        EXPECT_EQ(all_logits(*without, texts), all_logits(*with, texts));

        const std::string name = model_config(config)->prediction->projection + ".weight";
        checkpoint->remove(name);
        EXPECT_TRUE(Model::load(checkpoint, {}, threads).ok()) << "published files leave them out, some of them";
        const auto broken = load_predicting(checkpoint, threads);
        ASSERT_FALSE(broken.ok());
        EXPECT_NE(broken.error().message().find("'" + name + "' is missing"), std::string::npos)
            << broken.error().message();
    }
    const auto llama = load_predicting(small_checkpoint(), threads);
    ASSERT_FALSE(llama.ok());
    EXPECT_EQ(llama.error().message(), "config.json declares no layers for multi-token prediction");
    Json hybrid = predicting_nemotron();
    hybrid["mtp_hybrid_override_pattern"] = "*M";
    const auto recurrent = load_predicting(made_up_model(hybrid), threads);
    ASSERT_FALSE(recurrent.ok());
    EXPECT_NE(recurrent.error().message().find("Mamba-2"), std::string::npos);
}

}  // namespace
}  // namespace nibble::test
