#include "checkpoint/exclude_modules.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace nibble {
namespace {

using Names = std::vector<std::string>;

TEST(ExcludeModules, PatternsAreTheShortestPrefixesThatMatchNoQuantizedModule) {
    struct Row {
        Names unquantized, quantized, expected;
    };
    const Row rows[] = {
        {{"lm_head"}, {"model.layers.0.q"}, {"lm_head"}},  // no dot, no prefix
        {{"model.visual.a", "model.visual.b.c"}, {"model.layers.0.q"}, {"model.visual*"}},
        {{"model.layers.0.self_attn.q", "model.layers.0.self_attn.k"},
         {"model.layers.0.mlp.up"},
         {"model.layers.0.self_attn*"}},
        // "model.layers.1*" would cover layer 10: the dot is needed
        {{"model.layers.1.mlp.up"}, {"model.layers.10.mlp.up"}, {"model.layers.1.*"}},
        // characters, not components: "mlp*" would cover "mlp2"
        {{"m.mlp.up"}, {"m.mlp2.up"}, {"m.mlp.*"}},
        // the router next to quantized experts
        {{"m.mlp.gate"}, {"m.mlp.experts.0.up"}, {"m.mlp.gate"}},
        // a quantized module with the same name
        {{"a.b.c"}, {"a.b"}, {"a.b.c"}},
        // several names share one entry; sorted
        {{"z.a", "y.b", "y.c"}, {"model.q"}, {"y*", "z*"}},
        // Nemotron-H is sorted as "model."
        {{"lm_head", "backbone.embeddings", "backbone.layers.0.gate"},
         {"backbone.layers.0.up", "backbone.embeddingsx"},
         {"lm_head", "backbone.embeddings", "backbone.layers.0.gate"}},
        {{}, {"a.b"}, {}},
    };
    for (const Row& row : rows) EXPECT_EQ(compress_exclude_modules(row.unquantized, row.quantized), row.expected);
}

TEST(ExcludeModules, PatternsMatchAllUnquantizedAndNoQuantizedModules) {
    const Names unquantized{"lm_head", "m.layers.1.mlp.up", "m.layers.2.attn.q", "m.vision.x", "m.layers.10.gate"};
    const Names quantized{"m.layers.10.mlp.up", "m.layers.2.mlp.up"};
    const ModulePatterns patterns(compress_exclude_modules(unquantized, quantized));
    for (const auto& name : unquantized) EXPECT_TRUE(patterns.matches(name)) << name;
    for (const auto& name : quantized) EXPECT_FALSE(patterns.matches(name)) << name;
    EXPECT_FALSE(patterns.matches("lm_head2"));
}

// Granite's router is a module with one linear; Model Optimizer lists the module, and vLLM calls it gate.
TEST(ExcludeModules, LoadersNameARouterByItsModule) {
    const Names names = loader_names("m.layers.0.block_sparse_moe.router.layer");
    for (const char* wanted : {"m.layers.0.block_sparse_moe.router", "m.layers.0.block_sparse_moe.gate"})
        EXPECT_NE(std::ranges::find(names, wanted), names.end()) << wanted;
}

}  // namespace
}  // namespace nibble
