// The mixed-precision search on small models: groups, costs, constraints, and recipes that implement the choice.
#include "quant/search.h"

#include "quant/models.h"
#include "quant/recipe.h"
#include "support/files.h"

#include <gtest/gtest.h>

#include <random>

namespace nibble::test {
namespace {

// Two layers: one dense, one with four experts of which a token uses two, and shared experts.
TensorList hybrid() {
    TensorList list;
    list.config = {
        {"model_type", "qwen3_moe"}, {"num_experts", 4}, {"num_experts_per_tok", 2}, {"tie_word_embeddings", false}};
    const auto add = [&](const std::string& name, std::vector<int64_t> shape) {
        list.tensors.push_back(tensor("model." + name + ".weight", std::move(shape)));
    };
    add("embed_tokens", {100, 64});
    for (const std::string l : {"layers.0.", "layers.1."}) {
        for (const char* p : {"q_proj", "k_proj", "v_proj", "o_proj"}) add(l + "self_attn." + p, {64, 64});
        add(l + "input_layernorm", {64});
    }
    for (const char* p : {"gate_proj", "up_proj"}) add(std::string("layers.0.mlp.") + p, {96, 64});
    add("layers.0.mlp.down_proj", {64, 96});
    add("layers.1.mlp.gate", {4, 64});
    for (const std::string e : {"experts.0.", "experts.1.", "experts.2.", "experts.3.", "shared_expert."}) {
        for (const char* p : {"gate_proj", "up_proj"}) add("layers.1.mlp." + e + p, {32, 64});
        add("layers.1.mlp." + e + "down_proj", {64, 32});
    }
    add("layers.1.mlp.shared_expert_gate", {1, 64});
    list.tensors.push_back(tensor("lm_head.weight", {100, 64}));
    return list;
}

SearchSpace space_of(const TensorList& list, const SearchSpaceOptions& options = {}) {
    auto space = search_space(list.tensors, list.config, options);
    EXPECT_TRUE(space.ok()) << space.error().message();
    return std::move(*space);
}

std::vector<std::string> names_of(const SearchSpace& space) {
    std::vector<std::string> names;
    for (const SearchGroup& g : space.groups) names.push_back(g.name);
    return names;
}

const SearchGroup& group(const SearchSpace& space, const std::string& name) {
    const auto found = std::ranges::find(space.groups, name, &SearchGroup::name);
    if (found == space.groups.end()) throw std::runtime_error("no group " + name);
    return *found;
}

SearchScores random_scores(const SearchSpace& space, uint32_t seed) {
    std::mt19937 random(seed);
    SearchScores scores{.method = ScoreMethod::given, .origin = "test"};
    for (const SearchGroup& g : space.groups) {
        scores.values.emplace_back();
        for (const size_t f : g.candidates)
            scores.values.back().push_back(
                f == space.none() ? 0.0 : double(random() % 1000) / double(space.formats[f].millibits));
    }
    scores.make_monotone();
    return scores;
}

// Costs of formats as in Model Optimizer's auto_quantize, and the compression of presets in its test_autoquant.py.
TEST(SearchSpace, CostsOfFormatsEqualModelOptimizers) {
    for (const auto& [name, bits] : {std::pair{"nvfp4", 4.5},
                                     {"w4a16_nvfp4", 4.5},
                                     {"fp8", 8.0},
                                     {"w8a16_fp8", 8.0},
                                     {"mxfp8", 8.0},
                                     {"mxfp4", 4.0},
                                     {"w4a16_mxfp4", 4.0},
                                     {"none", 16.0}}) {
        const auto format = search_format(name);
        ASSERT_TRUE(format.ok()) << format.error().message();
        EXPECT_EQ(format->bits(), bits) << name;
    }
    EXPECT_EQ(search_format("nvfp4")->bits() / 16, 0.28125);
    EXPECT_EQ(search_format("fp8")->bits() / 16, 0.5);
    EXPECT_EQ(search_format("mxfp4")->bits() / 16, 0.25);
    EXPECT_EQ(search_format("int3").error().message(),
              "unknown format 'int3' for a search; choices: nvfp4, w4a16_nvfp4, mxfp4, w4a16_mxfp4, fp8, w8a16_fp8, "
              "mxfp8, none");
}

TEST(SearchSpace, GroupsContainTheLinearsThatNeedOneFormat) {
    const SearchSpace space = space_of(hybrid());
    EXPECT_EQ(names_of(space),
              (std::vector<std::string>{"model.layers.0.self_attn.{q,k,v}", "model.layers.0.self_attn.o_proj",
                                        "model.layers.1.self_attn.{q,k,v}", "model.layers.1.self_attn.o_proj",
                                        "model.layers.0.mlp.{gate,up}", "model.layers.0.mlp.down_proj",
                                        "model.layers.1.mlp.experts", "model.layers.1.mlp.shared_expert",
                                        "model.layers.1.mlp.shared_expert_gate", "lm_head"}));
    EXPECT_EQ(group(space, "model.layers.1.mlp.experts").tensors.size(), 12u);
    EXPECT_EQ(group(space, "model.layers.1.mlp.experts").elements, 12 * 32 * 64);
    EXPECT_EQ(group(space, "model.layers.1.mlp.shared_expert_gate").candidates, std::vector{space.none()});
    EXPECT_EQ(group(space, "lm_head").candidates.size(), 3u);
}

TEST(SearchSpace, EffectiveBitsCountEveryLinearOnce) {
    const SearchSpace space = space_of(hybrid());
    int64_t elements = 0;
    for (const SearchGroup& g : space.groups) elements += g.elements;
    EXPECT_EQ(elements, 8 * 64 * 64 + 3 * 96 * 64 + 15 * 32 * 64 + 64 + 100 * 64);
    EXPECT_EQ(space.most_bits(), 16.0);
    EXPECT_DOUBLE_EQ(space.least_bits(), (4.5 * double(elements - 64) + 16 * 64) / double(elements));
}

TEST(SearchSpace, ActiveMoeWeightsExpertsByHowOftenTheyRun) {
    const SearchSpace space = space_of(hybrid(), {.cost_model = CostModel::active_moe});
    EXPECT_EQ(space.weight_unit, 2);
    EXPECT_EQ(group(space, "model.layers.1.mlp.experts").weight, 1);
    EXPECT_EQ(group(space, "model.layers.1.mlp.shared_expert").weight, 2);
    std::vector<size_t> choice(space.groups.size(), space.none());
    choice[6] = 0;  // the experts
    ASSERT_EQ(space.groups[6].name, "model.layers.1.mlp.experts");
    const double experts = 12 * 32 * 64, all = 8 * 64 * 64 + 3 * 96 * 64 + 3 * 32 * 64 + 64 + 100 * 64;
    EXPECT_DOUBLE_EQ(space.bits(choice), (16 * all + 4.5 * experts / 2) / (all + experts / 2));

    TensorList dense = hybrid();
    dense.config.erase("num_experts");
    EXPECT_NE(search_space(dense.tensors, dense.config, {.cost_model = CostModel::active_moe})
                  .error()
                  .message()
                  .find("active_moe"),
              std::string::npos);
}

TEST(SearchSpace, KeepFixesFormatsAndTheLastMatchWins) {
    const SearchSpace space = space_of(
        hybrid(), {.keep = {{"*lm_head*", "mxfp8"}, {"*self_attn*", "fp8"}, {"*.0.self_attn.k_proj", "none"}}});
    const auto only = [&](const std::string& name) {
        const SearchGroup& g = group(space, name);
        return g.candidates.size() == 1 ? space.formats[g.candidates[0]].name : "a choice";
    };
    EXPECT_EQ(only("lm_head"), "mxfp8");
    EXPECT_EQ(only("model.layers.0.self_attn.{q,k,v}"), "none");
    EXPECT_EQ(only("model.layers.0.self_attn.o_proj"), "fp8");
    EXPECT_EQ(only("model.layers.1.self_attn.{q,k,v}"), "fp8");
    EXPECT_EQ(only("model.layers.0.mlp.down_proj"), "a choice");
    // mxfp8 is only for lm_head
    EXPECT_EQ(group(space, "model.layers.0.mlp.down_proj").candidates.size(), 3u);

    const TensorList list = hybrid();
    EXPECT_EQ(search_space(list.tensors, list.config, {.keep = {{"*nothing*", "fp8"}}}).error().message(),
              "--keep *nothing*=fp8 matches no linear of this checkpoint");
    EXPECT_EQ(parse_keep("*lm_head*").error().message(),
              "--keep '*lm_head*': give PATTERN=FORMAT, e.g. '*lm_head*=none'");
    EXPECT_FALSE(parse_keep("a=int3").ok());
    EXPECT_EQ(parse_keep("a=b=fp8")->pattern, "a=b");
}

TEST(SearchSpace, FormatsWhoseBlocksDoNotFitAreNotCandidates) {
    TensorList list = hybrid();
    for (CheckpointTensor& t : list.tensors)
        if (t.name == "model.layers.0.mlp.down_proj.weight") t.shape = {64, 90};
    const SearchSpace space = space_of(list);
    EXPECT_EQ(group(space, "model.layers.0.mlp.down_proj").candidates.size(), 2u);
    EXPECT_EQ(search_space(list.tensors, list.config, {.keep = {{"*down_proj", "nvfp4"}}}).error().message(),
              "--keep *down_proj=nvfp4: 'model.layers.0.mlp.down_proj.weight' has 90 inputs, which do not divide into "
              "blocks");
}

TEST(Search, TargetsAreMetAndMoreBitsNeverScoreWorse) {
    const SearchSpace space = space_of(hybrid());
    const SearchScores scores = random_scores(space, 1);
    const auto points = sweep(space, scores, 4, 16, 0.25);
    ASSERT_TRUE(points.ok()) << points.error().message();
    EXPECT_EQ(points->front().target, 4.75);  // 4.5 is slightly out of reach, because a gate stays unquantized
    EXPECT_EQ(points->size(), 46u);
    for (size_t i = 0; i < points->size(); ++i) {
        EXPECT_LE((*points)[i].bits, (*points)[i].target + 1e-12);
        if (i > 0) {
            EXPECT_LE((*points)[i].score, (*points)[i - 1].score);
        }
    }
    EXPECT_EQ(points->back().score, 0.0);
    EXPECT_EQ(choose(space, scores, 4.5).error().message(),
              "4.5 effective bits cannot be reached: these formats and constraints reach from 4.509 to 16.000");
}

TEST(Search, EveryRecipeResolvesToTheChosenFormats) {
    for (const TensorList& list : {hybrid()})
        for (const auto& formats : {std::vector<std::string>{"nvfp4", "fp8"}, {"w4a16_nvfp4", "mxfp8"}, {"mxfp4"}}) {
            const SearchSpace space = space_of(list, {.formats = formats});
            for (uint32_t seed = 0; seed < 8; ++seed) {
                const SearchScores scores = random_scores(space, seed);
                const auto point = choose(space, scores, 5 + seed);
                ASSERT_TRUE(point.ok()) << point.error().message();
                // checks every tensor
                const auto plan = plan_of(space, point->choice, list.tensors, list.config);
                ASSERT_TRUE(plan.ok()) << plan.error().message();
                EXPECT_TRUE(plan->warnings.empty()) << plan->warnings.front();
                // The file with its comments is the same recipe.
                TempDir dir;
                write_file(dir / "r.yaml", recipe_text(space, *point, "max", &scores));
                const auto recipe = load_recipe((dir / "r.yaml").string());
                ASSERT_TRUE(recipe.ok()) << recipe.error().message();
                const auto again = resolve(*recipe, list.tensors, list.config);
                ASSERT_TRUE(again.ok());
                for (size_t i = 0; i < plan->entries.size(); ++i) {
                    EXPECT_EQ(again->entries[i].spec, plan->entries[i].spec);
                    EXPECT_EQ(again->entries[i].activation, plan->entries[i].activation);
                }
            }
        }
}

}  // namespace
}  // namespace nibble::test
