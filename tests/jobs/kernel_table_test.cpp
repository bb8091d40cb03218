#include "jobs/kernel_table.h"

#include <gtest/gtest.h>

using namespace nibble;

namespace {

LayerKernels mlp(int layer, const std::string& kernel) {
    return {.prefix = "model.layers." + std::to_string(layer) + ".mlp",
            .layer = layer,
            .uses = {{.modules = {"gate_proj", "up_proj"},
                      .weights = "nvfp4",
                      .inputs = "bf16",
                      .out_width = 64,
                      .in_width = 32,
                      .choice = {kernel, "1 token"}}}};
}

}  // namespace

TEST(InspectKernels, EqualLayersAreOneSectionInAnyOrder) {
    KernelTable table{.device = "GPU", .tokens = 1};
    for (const int layer : {0, 3, 2, 1, 5}) table.layers.push_back(mlp(layer, layer == 2 ? "other" : "w4a16_token"));
    table.layers.push_back({.prefix = "lm_head",
                            .uses = {{.modules = {"lm_head"},
                                      .weights = "bf16",
                                      .inputs = "bf16",
                                      .out_width = 9,
                                      .in_width = 32,
                                      .choice = {"product_few", "few rows"}}}});
    EXPECT_EQ(kernels_text(table),
              "GPU: kernels of a step of 1 token\n\n"
              "  module              shape     weights  inputs  kernel       why\n"
              "\nlayers 0-1, 3, 5  model.layers.*.mlp\n"
              "  gate_proj, up_proj  [64, 32]  nvfp4    bf16    w4a16_token  1 token\n"
              "\nlayer 2  model.layers.*.mlp\n"
              "  gate_proj, up_proj  [64, 32]  nvfp4    bf16    other        1 token\n"
              "\nlm_head\n"
              "  lm_head             [9, 32]   bf16     bf16    product_few  few rows\n");
    const Json json = kernels_json(table);
    EXPECT_EQ(json["layers"].size(), 6u);
    EXPECT_EQ(json["layers"][2]["kernels"][0]["kernel"], "other");
    EXPECT_EQ(json["layers"][2]["layer"], 2);
    EXPECT_EQ(json["layers"][1]["layer"], 3);
    EXPECT_FALSE(json["layers"][5].contains("layer"));
    EXPECT_EQ(json["layers"][5]["kernels"][0]["shape"], (Json{9, 32}));
}

TEST(InspectKernels, FoldedRowsAndLines) {
    KernelTable table{.device = "GPU", .tokens = 1};
    for (const int layer : {0, 1, 2, 3, 5}) table.layers.push_back(mlp(layer, layer == 2 ? "other" : "w4a16_token"));
    for (const int layer : {0, 1, 3, 5})
        table.layers.push_back(
            {.prefix = "model.layers." + std::to_string(layer) + ".self_attn",
             .layer = layer,
             .uses = {{.modules = {"q_proj"}, .weights = "nvfp4", .inputs = "bf16", .choice = {"w4a16_token", ""}}}});
    table.layers.push_back(
        {.prefix = "lm_head",
         .uses = {{.modules = {"lm_head"}, .weights = "bf16", .inputs = "bf16", .choice = {"p", ""}}}});
    const Json rows = folded_kernels_json(table);
    ASSERT_EQ(rows.size(), 4u);
    EXPECT_EQ(rows[0], (Json{{"layers", "0-1, 3, 5"},
                             {"module", "mlp gate_proj, up_proj"},
                             {"weights", "nvfp4"},
                             {"inputs", "bf16"},
                             {"kernel", "w4a16_token"}}));
    EXPECT_EQ(
        folded_kernels_lines(rows),
        (std::vector<std::string>{
            "layers 0-1, 3, 5: mlp gate_proj, up_proj; self_attn q_proj -> nvfp4 weights, bf16 inputs, w4a16_token",
            "layer 2: mlp gate_proj, up_proj -> nvfp4 weights, bf16 inputs, other",
            "lm_head -> bf16 weights, bf16 inputs, p"}));
}
