// Models of every family on 2, 3, 4 and 8 ranks compute the bits of one rank.
#include "architecture/shards.h"
#include "model/family_folders.h"
#include "model/made_up_model.h"
#include "model/models.h"
#include "model/rank_threads.h"
#include "model/state_plan.h"

#include <gmock/gmock.h>

#include <algorithm>

namespace nibble::test {
namespace {

using testing::Each;
using testing::HasSubstr;

std::vector<int> degrees_of(const Checkpoint& checkpoint) {
    const auto config = model_config(checkpoint);
    EXPECT_TRUE(config.ok()) << config.error().message();
    std::vector<int> degrees;
    for (const int ranks : {2, 3, 4, 8})
        if (config.ok() && allows_ranks(sharded_tensors(*config), ranks)) degrees.push_back(ranks);
    return degrees;
}

std::vector<float> forward(const LanguageModel& model, std::vector<Segment> segments) {
    const Batch batch(std::move(segments));
    std::vector<float> logits(static_cast<size_t>(batch.wanted() * model.config().vocab));
    const Status status = model.forward(batch, logits);
    EXPECT_TRUE(status.ok()) << (status.ok() ? "" : status.error().message());
    return logits;
}

void append(std::vector<float>& to, const std::vector<float>& from) { to.insert(to.end(), from.begin(), from.end()); }

// Returns the logits of whole texts, and of what an engine does with sequences: prompts in pieces, several sequences in
// a step, a cached tile with copied states, a fork, tokens that are taken back, and steps of one token.
std::vector<float> all_steps(const LanguageModel& model, const std::vector<std::vector<int32_t>>& texts) {
    std::vector<float> all = all_logits(model, texts);
    const auto kv = model.make_pool(1024, 6);
    EXPECT_TRUE(kv.ok()) << (kv.ok() ? "" : kv.error().message());
    if (!kv.ok()) return all;
    std::vector<int32_t> text = texts[0];
    while (std::ssize(text) < kv_page_tokens + 12) text.insert(text.end(), texts[1].begin(), texts[1].end());
    // Sequences of a batch have token arrays of their own (Workspace::shared_choices).
    const std::vector<int32_t> copy = text;
    const std::span rest = std::span(copy).subspan(kv_page_tokens),
                    again = std::span(std::as_const(text)).subspan(kv_page_tokens);
    Sequence first = (*kv)->sequence(), second = (*kv)->sequence(), third = (*kv)->sequence();
    append(all, forward(model, {{&first, std::span(text).first(5), 0}}));
    append(all, forward(model, {{&first, std::span(text).subspan(5, kv_page_tokens - 5), 3}}));
    second.adopt(first.share(0));
    if ((*kv)->recurrent()) {
        const auto states = first.copy_states();
        EXPECT_TRUE(states.ok());
        EXPECT_TRUE(second.restore(*states).ok());
    }
    append(all, forward(model, {{&second, rest.first(2), 0}, {&third, texts[1], 1}}));
    auto fork = second.fork();
    EXPECT_TRUE(fork.ok());
    append(all, forward(model, {{&second, rest.subspan(2, 4), 0}, {&*fork, rest.subspan(6, 4), 0}}));
    if (!(*kv)->recurrent()) second.rewind(kv_page_tokens + 3);
    for (size_t i = 3; i < 8; ++i)
        append(all, forward(model, {{&*fork, rest.subspan(i, 1), 0}, {&second, again.subspan(i, 1), 0}}));
    return all;
}

// Rank 0 has as much as any other: heads are divided evenly in these models.
void expect_planned(const std::vector<StateLayout>& states, const ModelConfig& config, const ModelOptions& options,
                    int ranks) {
    if (options.compute != Compute::bf16 || options.kv || options.ssm_state != SsmStateFormat::f32) return;
    const std::vector<StateLayout> planned = planned_states(config, ranks);
    ASSERT_LE(planned.size(), states.size());
    for (size_t b = 0; b < planned.size(); ++b) {
        EXPECT_EQ(planned[b].page_bytes, states[b].page_bytes) << "block " << b;
        EXPECT_EQ(planned[b].window, states[b].window) << "block " << b;
        EXPECT_EQ(planned[b].floats, states[b].floats) << "block " << b;
    }
}

void expect_equal_on_ranks(const std::shared_ptr<const Checkpoint>& checkpoint, const ModelOptions& options,
                           const std::vector<std::vector<int32_t>>& texts, std::span<const int> degrees) {
    ThreadPool pool(2);
    const auto alone = Model::load(checkpoint, options, pool);
    ASSERT_TRUE(alone.ok()) << alone.error().message();
    expect_planned(alone->states(), alone->config(), options, 1);
    const std::vector<float> expected = all_steps(*alone, texts);
    for (const int ranks : degrees) {
        SCOPED_TRACE(fmt::format("{} ranks", ranks));
        ThreadTeam team(checkpoint, options, ranks);
        {
            const auto model = team.load();
            ASSERT_TRUE(model.ok()) << model.error().message();
            expect_planned((*model)->states(), (*model)->config(), options, ranks);
            const std::vector<float> got = all_steps(**model, texts);
            ASSERT_EQ(got.size(), expected.size());
            EXPECT_EQ(std::memcmp(got.data(), expected.data(), got.size() * sizeof(float)), 0);
        }
        EXPECT_THAT(team.end(), Each(""));
    }
}

class DividedFamilies : public testing::TestWithParam<std::string> {};

TEST_P(DividedFamilies, RanksComputeTheBitsOfOne) {
    const auto folder = family_root() / GetParam();
    const auto checkpoint = open_checkpoint(folder);
    const std::vector<int> degrees = degrees_of(*checkpoint);
    ASSERT_FALSE(degrees.empty());
    for (const Compute compute : {Compute::f32, Compute::bf16}) {
        ModelOptions options;
        options.compute = compute;
        expect_equal_on_ranks(checkpoint, options, golden_texts(folder / "expect.safetensors"), degrees);
    }
    std::printf("%s: %s ranks\n", GetParam().c_str(), fmt::format("{}", fmt::join(degrees, ", ")).c_str());
}

INSTANTIATE_TEST_SUITE_P(All, DividedFamilies,
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

class DividedGolden : public testing::TestWithParam<std::string> {};

// Weights in every stored form: 16-element blocks, tiles of 128 rows that ranks cut, scales per row.
TEST_P(DividedGolden, RanksComputeTheBitsOfOne) {
    const std::filesystem::path root = test_data("golden");
    std::filesystem::path texts = root / GetParam() / "expect.safetensors";
    if (GetParam().ends_with(".gguf")) texts = root / "gguf/llama-mixed.expect.safetensors";
    const auto checkpoint = open_checkpoint(root / GetParam());
    const std::vector<int> degrees = degrees_of(*checkpoint);
    ASSERT_FALSE(degrees.empty());
    for (const KvFormat kv : {KvFormat::none, KvFormat::fp8_page}) {
        ModelOptions options;
        options.kv = kv;
        expect_equal_on_ranks(checkpoint, options, golden_texts(texts), degrees);
    }
}

INSTANTIATE_TEST_SUITE_P(All, DividedGolden,
                         testing::Values("models/llama", "models/llama-rope3", "models/qwen2", "models/qwen3",
                                         "models/mixtral", "models/qwen3_moe", "models/deepseek_v3",
                                         "models/nemotron_h", "compressed-tensors/nvfp4a16",
                                         "compressed-tensors/fp8_dynamic", "compressed-tensors/fp8_block",
                                         "compressed-tensors/mxfp4a16", "gguf/llama-mixed.gguf"),
                         [](const auto& name) {
                             std::string text = name.param.substr(name.param.find('/') + 1);
                             std::ranges::replace_if(
                                 text, [](char c) { return c == '-' || c == '.'; }, '_');
                             return text;
                         });

Json wide_llama(int heads, int kv_heads) {
    return {{"model_type", "qwen3"},           {"vocab_size", 400},      {"hidden_size", 384},
            {"intermediate_size", 400},        {"num_hidden_layers", 2}, {"num_attention_heads", heads},
            {"num_key_value_heads", kv_heads}, {"head_dim", 16},         {"rms_norm_eps", 1e-6},
            {"rope_theta", 10000.0},           {"hidden_act", "silu"},   {"tie_word_embeddings", true},
            {"max_position_embeddings", 512}};
}

std::vector<std::vector<int32_t>> some_texts() {
    std::vector<std::vector<int32_t>> texts(2);
    for (int i = 0; i < 50; ++i) texts[0].push_back(i * 29 % 250), texts[1].push_back(i * 13 % 241);
    return texts;
}

// Rows that do not divide evenly, and more ranks than heads of keys and values.
TEST(DividedModel, EveryDegreeComputesTheBitsOfOne) {
    ModelOptions options;
    for (const auto& [heads, kv, degrees] : std::vector<std::tuple<int, int, std::vector<int>>>{
             {24, 2, {2, 4, 8}}, {24, 24, {2, 3, 4, 6, 8, 12}}, {24, 1, {3, 8}}})
        expect_equal_on_ranks(made_up_model(wide_llama(heads, kv)), options, some_texts(), degrees);
}

// One model with eight heads of each kind: Mamba-2, attention, experts.
TEST(DividedModel, EightRanksDivideMambaAttentionAndExperts) {
    Json config = predicting_nemotron();
    config.erase("num_nextn_predict_layers");
    config.erase("mtp_hybrid_override_pattern");
    config["mamba_num_heads"] = 8, config["n_groups"] = 8, config["num_attention_heads"] = 8;
    config["n_routed_experts"] = 8;
    for (const SsmStateFormat state : {SsmStateFormat::f32, SsmStateFormat::bf16, SsmStateFormat::fp16_stochastic}) {
        ModelOptions options;
        options.ssm_state = state;
        const std::vector<int> degrees{2, 4, 8};
        expect_equal_on_ranks(made_up_model(config), options, some_texts(), degrees);
    }
}

// Drafts of prediction layers, applied twice.
TEST(DividedModel, PredictionLayersChooseTheSameTokens) {
    for (const Json& config : {predicting_deepseek(), predicting_nemotron()}) {
        const auto checkpoint = made_up_model(config);
        ModelOptions options;
        options.prediction = true;
        const auto drafts = [](const LanguageModel& model) {
            std::vector<int32_t> ids;
            const auto texts = some_texts();
            const auto kv = model.make_pool(256, 2);
            EXPECT_TRUE(kv.ok());
            Sequence sequence = (*kv)->sequence();
            const auto n = static_cast<int64_t>(texts[0].size());
            forward(model, {{&sequence, texts[0], n - 1}});
            std::vector<int32_t> rows, next(texts[0].begin() + 1, texts[0].end());
            for (int32_t i = 0; i < n; ++i) rows.push_back(i);
            next.push_back(7);
            for (int i = 0; i < 2; ++i) {
                std::vector<ChosenToken> chosen(1);
                const TokenRequest request;
                EXPECT_TRUE(sequence.reserve(4).ok());
                const Status done =
                    i == 0 ? model.predict(Batch({{&sequence, next, n - 1, 0}}), rows, false, {&request, 1}, chosen)
                           : model.predict(Batch({{&sequence, {&next.back(), 1}, 0, n}}), std::vector<int32_t>{0}, true,
                                           {&request, 1}, chosen);
                EXPECT_TRUE(done.ok()) << (done.ok() ? "" : done.error().message());
                ids.push_back(chosen[0].id);
                next.push_back(chosen[0].id);
            }
            return ids;
        };
        ThreadPool pool(1);
        const auto alone = Model::load(checkpoint, options, pool);
        ASSERT_TRUE(alone.ok()) << alone.error().message();
        const std::vector<int32_t> expected = drafts(*alone);
        EXPECT_THAT(expected, Each(testing::Ge(0)));
        ThreadTeam team(checkpoint, options, 2);
        {
            const auto model = team.load();
            ASSERT_TRUE(model.ok()) << model.error().message();
            EXPECT_EQ(drafts(**model), expected);
        }
        EXPECT_THAT(team.end(), Each(""));
    }
}

TEST(DividedModel, ADegreeThatDoesNotFitNamesThoseThatDo) {
    ThreadTeam team(open_checkpoint(test_data("golden/models/llama")), {}, 7);
    const auto model = team.load();
    ASSERT_FALSE(model.ok());
    EXPECT_THAT(model.error().message(), HasSubstr("7 ranks: "));
    EXPECT_THAT(model.error().message(), HasSubstr("numbers of ranks that work, up to 64: 1, "));
}

// A rank that is a thread prints nothing: rank 0 says why it could not load.
TEST(DividedModel, ARankThatIsAThreadSaysWhyItCannotLoad) {
    auto all = thread_ranks(2);
    const auto errors = std::make_shared<LoadErrors>();
    std::vector<std::thread> followers;
    followers.emplace_back([own = std::move(all[1]), errors]() mutable {
        (void)follow(*own, [&](const std::string&) -> Result<Model> {
            errors->set(own->rank(), fail("weights.safetensors: no such file"));
            return fail("weights.safetensors: no such file");
        }).ok();
        own.reset();
    });
    const auto team = std::make_shared<RankTeam>(std::move(all[0]), std::move(followers), errors);
    ThreadPool pool(1);
    const auto model =
        DividedModel::load(team, "", open_checkpoint(test_data("golden/models/llama")), ModelOptions{}, pool);
    ASSERT_FALSE(model.ok());
    EXPECT_EQ(model.error().message(), "rank 1: weights.safetensors: no such file");
}

// A step that fails because of its inputs fails on every rank, and the next one runs.
TEST(DividedModel, AFailedStepDoesNotEndTheRanks) {
    const auto folder = test_data("golden/models/llama");
    ThreadTeam team(open_checkpoint(folder), {}, 2);
    {
        const auto model = team.load();
        ASSERT_TRUE(model.ok()) << model.error().message();
        const std::vector<int32_t> bad{1, 1 << 30}, good{1, 2, 3};
        std::vector<float> logits(static_cast<size_t>(3 * (*model)->config().vocab));
        const std::span<float> two(logits.data(), static_cast<size_t>(2 * (*model)->config().vocab));
        const Status refused = (*model)->forward(Batch({{nullptr, bad, 0}}), two);
        ASSERT_FALSE(refused.ok());
        EXPECT_THAT(refused.error().message(), HasSubstr("is not in the vocabulary"));
        const Status done = (*model)->forward(Batch({{nullptr, good, 0}}), logits);
        EXPECT_TRUE(done.ok()) << (done.ok() ? "" : done.error().message());
    }
    EXPECT_THAT(team.end(), Each(""));
}

TEST(DividedModel, ATeamRunsSeveralModels) {
    const auto folder = test_data("golden/models/qwen3");
    const auto texts = golden_texts(folder / "expect.safetensors");
    ThreadTeam team(open_checkpoint(folder), {}, 2);
    {
        const auto one = team.load();
        ASSERT_TRUE(one.ok()) << one.error().message();
        const std::vector<float> before = all_logits(**one, texts);
        {
            const auto two = team.load();
            ASSERT_TRUE(two.ok()) << two.error().message();
            EXPECT_EQ(all_logits(**two, texts), before);
        }
        EXPECT_EQ(all_logits(**one, texts), before);
    }
    EXPECT_THAT(team.end(), Each(""));
}

// The shares of a model's weights add up to little more than the model.
TEST(DividedModel, ARankHasItsRowsOnly) {
    const auto checkpoint = open_checkpoint(test_data("golden/models/llama"));
    auto ranks = thread_ranks(2);
    ThreadPool pool(1);
    ModelOptions options;
    const auto whole = Model::load(checkpoint, options, pool);
    options.ranks = ranks[1].get();
    const auto half = Model::load(checkpoint, options, pool);
    ASSERT_TRUE(whole.ok() && half.ok());
    for (size_t b = 0; b < whole->blocks().size(); ++b) {
        const auto all = whole->blocks()[b].linears(), own = half->blocks()[b].linears();
        ASSERT_EQ(all.size(), own.size());
        for (size_t i = 0; i < all.size(); ++i) {
            if (all[i]->weight.rows() == 0) continue;  // in a stack
            EXPECT_EQ(2 * own[i]->weight.rows(), all[i]->weight.rows()) << all[i]->name;
        }
        EXPECT_LT(half->states()[b].page_bytes, whole->states()[b].page_bytes + 1);
    }
    EXPECT_EQ(2 * half->head().linear().weight.rows(), whole->head().linear().weight.rows());
    EXPECT_EQ(2 * half->states()[0].page_bytes, whole->states()[0].page_bytes);
}

}  // namespace
}  // namespace nibble::test
