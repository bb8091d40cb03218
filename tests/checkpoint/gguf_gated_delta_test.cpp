// Gated delta nets in GGUF: names, sizes, and the order of value heads that llama.cpp's converter (conversion/qwen.py)
// gives them, written here as reshape and transpose.
#include "architecture/tensor_list.h"
#include "checkpoint/gguf_from_hf.h"
#include "folders.h"
#include "formats/ggml_dequantize.h"
#include "formats/minifloat.h"
#include "io/gguf.h"

#include <cmath>
#include <map>

namespace nibble::test {
namespace {

using Values = std::vector<float>;

// Three layers; two key heads with three value heads each.
Json gated_delta_config(std::string_view type) {
    Json config{{"model_type", type},
                {"vocab_size", 16},
                {"hidden_size", 64},
                {"intermediate_size", 128},
                {"num_hidden_layers", 3},
                {"layer_types", {"linear_attention", "full_attention", "linear_attention"}},
                {"num_attention_heads", 2},
                {"num_key_value_heads", 1},
                {"head_dim", 32},
                {"max_position_embeddings", 512},
                {"rope_theta", 1e6},
                {"linear_num_key_heads", 2},
                {"linear_num_value_heads", 6},
                {"linear_key_head_dim", 64},
                {"linear_value_head_dim", 64},
                {"linear_conv_kernel_dim", 4}};
    if (type == "qwen3_5_text") return config;
    config.update({{"num_experts", 2},
                   {"num_experts_per_tok", 1},
                   {"moe_intermediate_size", 64},
                   {"shared_expert_intermediate_size", 64}});
    return config;
}

// Every number of a tensor is its place in it, as far as BF16 counts: 0 to 255, then again with another sign.
std::map<std::string, HfTensor> counted_tensors(const Json& config) {
    std::map<std::string, HfTensor> tensors;
    for (const TensorEntry& e : tensor_list(value_of(model_config(config)))) {
        HfTensor t{e.name, e.shape, {}};
        int64_t n = 1;
        for (const int64_t d : e.shape) n *= d;
        const int64_t cols = n / e.shape[0];
        for (int64_t i = 0; i < n; ++i) {
            const float row = static_cast<float>(i / cols % 256), col = static_cast<float>(i % cols % 256);
            t.values.push_back(round_to_bf16(cols == 1 ? row / 64 : row + col / 1024 * (i / cols / 256 % 2 ? -1 : 1)));
        }
        tensors.emplace(e.name, std::move(t));
    }
    return tensors;
}

ExportSpec gated_delta_spec(const Json& config, const std::map<std::string, HfTensor>& tensors,
                            const std::filesystem::path& out) {
    ExportSpec spec{.dialect = Dialect::gguf, .out = out, .config = config};
    for (const auto& [name, t] : tensors) spec.tensors.push_back({.name = name, .shape = t.shape});
    return spec;
}

// Writes the tensors in panels of `step` rows, the last ones first.
GgufFile write_gated_delta(const Json& config, const std::map<std::string, HfTensor>& tensors,
                           const std::filesystem::path& out, int64_t step) {
    const ExportSpec spec = gated_delta_spec(config, tensors, out);
    auto file = value_of(open_export(spec, ExportMode::create));
    size_t index = 0;
    for (const auto& [name, t] : tensors) {
        Matrix m(DType::bf16, t.shape[0], static_cast<int64_t>(t.values.size()) / t.shape[0]);
        std::ranges::transform(t.values, reinterpret_cast<uint16_t*>(m.data.data()), bf16_from_float);
        for (int64_t row = (t.shape[0] - 1) / step * step; row >= 0; row -= step)
            check(file->write_plain(index, row, m.view().panel(row, std::min(step, t.shape[0] - row))));
        ++index;
    }
    check(file->finish());
    return value_of(GgufFile::open(out));
}

Values read_gguf(const GgufFile& file, const std::string& name) {
    const GgufTensor* t = file.find_tensor(name);
    EXPECT_NE(t, nullptr) << name;
    if (!t) return {};
    int64_t n = 1;
    for (const int64_t d : t->shape) n *= d;
    Values values(static_cast<size_t>(n));
    check(ggml_dequantize(t->type, t->data, values.data(), n));
    return values;
}

// [outer, groups, per_group, inner] -> [outer, per_group, groups, inner]
Values transposed_heads(const Values& x, int64_t outer, int64_t groups, int64_t per_group, int64_t inner) {
    Values y;
    for (int64_t o = 0; o < outer; ++o)
        for (int64_t p = 0; p < per_group; ++p)
            for (int64_t g = 0; g < groups; ++g)
                for (int64_t i = 0; i < inner; ++i)
                    y.push_back(x[size_t(((o * groups + g) * per_group + p) * inner + i)]);
    return y;
}

// The first `kept` numbers as they are, then heads of `inner` numbers.
Values with_tiled_heads(const Values& x, int64_t kept, int64_t inner) {
    Values y(x.begin(), x.begin() + kept);
    const Values heads = transposed_heads(Values(x.begin() + kept, x.end()), 1, 2, 3, inner);
    y.insert(y.end(), heads.begin(), heads.end());
    return y;
}

TEST(GgufGatedDelta, ValueHeadsAreInLlamaCppsOrderForAnyPanels) {
    TempDir dir;
    for (const char* type : {"qwen3_5_text", "qwen3_5_moe_text"})
        for (const int64_t step : {5, 64, 1024}) {
            SCOPED_TRACE(fmt::format("{} {}", type, step));
            const Json config = gated_delta_config(type);
            const auto tensors = counted_tensors(config);
            const GgufFile file = write_gated_delta(config, tensors, dir / fmt::format("{}{}.gguf", type, step), step);
            const std::string p = "model.layers.2.linear_attn.";
            const auto hf = [&](const char* name) { return tensors.at(p + name).values; };
            const auto gguf = [&](const char* name) { return read_gguf(file, std::string("blk.2.") + name); };
            EXPECT_EQ(gguf("attn_qkv.weight"), with_tiled_heads(hf("in_proj_qkv.weight"), 2 * 128 * 64, 64 * 64));
            EXPECT_EQ(gguf("attn_gate.weight"), with_tiled_heads(hf("in_proj_z.weight"), 0, 64 * 64));
            EXPECT_EQ(gguf("ssm_beta.weight"), with_tiled_heads(hf("in_proj_b.weight"), 0, 64));
            EXPECT_EQ(gguf("ssm_alpha.weight"), with_tiled_heads(hf("in_proj_a.weight"), 0, 64));
            EXPECT_EQ(gguf("ssm_conv1d.weight"), with_tiled_heads(hf("conv1d.weight"), 2 * 128 * 4, 64 * 4));
            EXPECT_EQ(gguf("ssm_dt.bias"), with_tiled_heads(hf("dt_bias"), 0, 1));
            EXPECT_EQ(gguf("ssm_norm.weight"), hf("norm.weight"));
            EXPECT_EQ(gguf("ssm_out.weight"), transposed_heads(hf("out_proj.weight"), 64, 2, 3, 64));
            Values a = with_tiled_heads(hf("A_log"), 0, 1);
            for (float& x : a) x = static_cast<float>(-std::exp(double{x}));
            EXPECT_EQ(gguf("ssm_a"), a);
            EXPECT_EQ(file.find_tensor("blk.2.ssm_a")->shape, std::vector<int64_t>{6});
        }
}

TEST(GgufGatedDelta, RowsByKeyHeadStay) {
    TempDir dir;
    const Json config = gated_delta_config("qwen3_next");
    const auto tensors = counted_tensors(config);
    const GgufFile file = write_gated_delta(config, tensors, dir / "x.gguf", 7);
    const std::string p = "model.layers.0.linear_attn.";
    EXPECT_EQ(read_gguf(file, "blk.0.ssm_in.weight"), tensors.at(p + "in_proj_qkvz.weight").values);
    EXPECT_EQ(read_gguf(file, "blk.0.ssm_ba.weight"), tensors.at(p + "in_proj_ba.weight").values);
    EXPECT_EQ(read_gguf(file, "blk.0.ssm_out.weight"), tensors.at(p + "out_proj.weight").values);
    EXPECT_EQ(read_gguf(file, "blk.0.ssm_dt.bias"), tensors.at(p + "dt_bias").values);
}

TEST(GgufGatedDelta, NormsAreShiftedAndGatesHaveTheirNames) {
    TempDir dir;
    const Json config = gated_delta_config("qwen3_5_moe_text");
    const auto tensors = counted_tensors(config);
    const GgufFile file = write_gated_delta(config, tensors, dir / "x.gguf", 64);
    for (const auto& [gguf, hf] :
         {std::pair{"attn_norm", "input_layernorm"}, std::pair{"post_attention_norm", "post_attention_layernorm"},
          std::pair{"attn_q_norm", "self_attn.q_norm"}, std::pair{"attn_k_norm", "self_attn.k_norm"}}) {
        Values want = tensors.at(fmt::format("model.layers.1.{}.weight", hf)).values;
        for (float& x : want) x += 1;
        EXPECT_EQ(read_gguf(file, fmt::format("blk.1.{}.weight", gguf)), want) << gguf;
    }
    EXPECT_EQ(read_gguf(file, "blk.1.attn_q.weight"), tensors.at("model.layers.1.self_attn.q_proj.weight").values);
    EXPECT_EQ(read_gguf(file, "blk.1.ffn_gate_inp_shexp.weight"),
              tensors.at("model.layers.1.mlp.shared_expert_gate.weight").values);
    EXPECT_EQ(file.find_tensor("blk.1.ffn_gate_inp_shexp.weight")->type, GgmlType::f32);
    EXPECT_EQ(file.find_tensor("blk.1.ffn_down_exps.weight")->shape, (std::vector<int64_t>{2, 64, 64}));
}

TEST(GgufGatedDelta, MetadataIsThatOfLlamaCppsConverter) {
    TempDir dir;
    for (const auto& [type, arch] : {std::pair{"qwen3_5_text", "qwen35"}, std::pair{"qwen3_5_moe_text", "qwen35moe"},
                                     std::pair{"qwen3_next", "qwen3next"}}) {
        const Json config = gated_delta_config(type);
        const GgufFile file =
            write_gated_delta(config, counted_tensors(config), dir / fmt::format("{}.gguf", type), 64);
        const GgufMetadata& m = file.metadata();
        EXPECT_EQ(value_of(m.string("general.architecture")), arch);
        const auto number = [&](std::string_view key) {
            const auto value = m.integer(fmt::format("{}.{}", arch, key));
            return value.ok() ? *value : -1;
        };
        for (const auto& [key, want] :
             std::initializer_list<std::pair<std::string_view, int64_t>>{{"block_count", 3},
                                                                         {"attention.key_length", 32},
                                                                         {"rope.dimension_count", 8},
                                                                         {"full_attention_interval", 2},
                                                                         {"ssm.conv_kernel", 4},
                                                                         {"ssm.state_size", 64},
                                                                         {"ssm.group_count", 2},
                                                                         {"ssm.time_step_rank", 6},
                                                                         {"ssm.inner_size", 384}})
            EXPECT_EQ(number(key), want) << arch << " " << key;
        const bool experts = std::string_view(type) != "qwen3_5_text";
        EXPECT_EQ(number("expert_count"), experts ? 2 : -1);
        EXPECT_EQ(number("expert_shared_feed_forward_length"), experts ? 64 : -1);
        const bool sections = std::string_view(type) != "qwen3_next";
        EXPECT_EQ(m.has(fmt::format("{}.rope.dimension_sections", arch)), sections);
        if (sections) {
            EXPECT_EQ(value_of(m.integers(fmt::format("{}.rope.dimension_sections", arch))),
                      (std::vector<int64_t>{11, 11, 10, 0}));
        }
    }
}

TEST(GgufGatedDelta, ModelsThatLlamaCppCannotComputeAreRefused) {
    TempDir dir;
    const auto open = [&](std::string_view type, const Json& changes, Format format) {
        Json config = gated_delta_config(type);
        config.update(changes);
        ExportSpec spec = gated_delta_spec(config, counted_tensors(config), dir / "x.gguf");
        for (ExportTensor& t : spec.tensors)
            if (t.name.ends_with("linear_attn.out_proj.weight") || t.name.ends_with("in_proj_qkvz.weight"))
                t.format = format;
        return open_export(spec, ExportMode::create);
    };
    const auto refused = [&](std::string_view type, const Json& changes, Format format = Format::none) {
        return message_of(open(type, changes, format));
    };
    EXPECT_NE(refused("qwen3_5_text", {{"linear_value_head_dim", 32}}).find("needs that of keys, 64"),
              std::string::npos);
    EXPECT_NE(refused("qwen3_5_text", {{"layer_types", {"linear_attention", "full_attention", "full_attention"}}})
                  .find("attention every 2 layers at layer 2"),
              std::string::npos);
    EXPECT_NE(refused("qwen3_next", {{"mlp_only_layers", {1}}}).find("experts in every layer"), std::string::npos);
    EXPECT_NE(refused("qwen3_next", Json::object(), Format::nvfp4).find("no tensor scale for ssm_"), std::string::npos);
    const Json small{{"linear_key_head_dim", 32}, {"linear_value_head_dim", 32}};
    EXPECT_NE(refused("qwen3_5_text", small, Format::nvfp4).find("are not whole blocks of 64"), std::string::npos);
    EXPECT_TRUE(open("qwen3_5_text", Json::object(), Format::nvfp4).ok());
}

}  // namespace
}  // namespace nibble::test
