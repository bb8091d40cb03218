#include "checkpoint/gguf_from_hf.h"

#include "checkpoint/gguf_names.h"
#include "formats/minifloat.h"
#include "io/safetensors.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <numbers>

namespace nibble::test {
namespace {

int64_t product(const std::vector<int64_t>& shape) {
    int64_t n = 1;
    for (const int64_t d : shape) n *= d;
    return n;
}

// reshape(heads, 2, d/2, cols).swapaxes(1, 2): llama.cpp's LlamaModel.permute.
std::vector<float> permute_heads(const std::vector<float>& x, int64_t rows, int64_t heads) {
    const int64_t half = rows / heads / 2, cols = static_cast<int64_t>(x.size()) / rows;
    std::vector<float> out;
    for (int64_t h = 0; h < heads; ++h)
        for (int64_t i = 0; i < half; ++i)
            for (int64_t p = 0; p < 2; ++p) {
                const auto row = x.begin() + ((h * 2 + p) * half + i) * cols;
                out.insert(out.end(), row, row + cols);
            }
    return out;
}

std::string architecture_of(const Json& config) {
    static const std::map<std::string, std::string> names{
        {"llama", "llama"},        {"mistral", "llama"},
        {"mixtral", "llama"},      {"qwen2", "qwen2"},
        {"qwen3", "qwen3"},        {"qwen3_moe", "qwen3moe"},
        {"gemma3_text", "gemma3"}, {"nemotron_h", "nemotron_h_moe"},
        {"seed_oss", "seed_oss"},
    };
    return names.at(config["model_type"]);
}

class MetadataWriter {
public:
    MetadataWriter(GgufFromHf& out, const Json& config) : out_(out), c_(config) {}

    void integer(const std::string& key, const std::string& field) {
        if (c_.contains(field) && !c_[field].is_null())
            out_.metadata.add(out_.architecture + "." + key, c_[field].get<uint32_t>());
    }
    void number(const std::string& key, const std::string& field) {
        if (c_.contains(field) && !c_[field].is_null())
            out_.metadata.add(out_.architecture + "." + key, c_[field].get<float>());
    }
    void boolean(const std::string& key, const std::string& field) {
        if (c_.contains(field)) out_.metadata.add(out_.architecture + "." + key, c_[field].get<bool>());
    }

private:
    GgufFromHf& out_;
    const Json& c_;
};

void add_rope(GgufFromHf& out, const Json& config) {
    const Json rope = config.value("rope_parameters", config);
    if (!rope.contains("rope_theta")) return;
    const double base = rope["rope_theta"];
    out.metadata.add(out.architecture + ".rope.freq_base", static_cast<float>(base));
    if (!config.contains("rope_scaling") || config["rope_scaling"].is_null()) return;
    const Json& s = config["rope_scaling"];
    const std::string type = s["rope_type"];
    if (type != "llama3") {
        out.metadata.add(out.architecture + ".rope.scaling.type", type);
        out.metadata.add(out.architecture + ".rope.scaling.factor", s["factor"].get<float>());
        if (s.contains("original_max_position_embeddings"))
            out.metadata.add(out.architecture + ".rope.scaling.original_context_length",
                             s["original_max_position_embeddings"].get<uint32_t>());
        return;
    }
    const int64_t d = config["head_dim"];
    const double factor = s["factor"], length = s["original_max_position_embeddings"];
    std::vector<float> divisors;
    for (int64_t i = 0; i < d / 2; ++i) {
        const double wave =
            2 * std::numbers::pi * std::pow(base, 2.0 * static_cast<double>(i) / static_cast<double>(d));
        const double smooth = (length / wave - 1) / 3;
        divisors.push_back(static_cast<float>(wave < length / 4 ? 1
                                              : wave > length   ? factor
                                                                : 1 / ((1 - smooth) / factor + smooth)));
    }
    out.add("rope_freqs.weight", {d / 2}, divisors);
}

void add_metadata(GgufFromHf& out, const Json& config) {
    out.metadata.add("general.architecture", out.architecture);
    MetadataWriter m(out, config);
    m.integer("context_length", "max_position_embeddings");
    m.integer("embedding_length", "hidden_size");
    m.integer("block_count", "num_hidden_layers");
    m.integer("attention.head_count", "num_attention_heads");
    m.integer("attention.key_length", "head_dim");
    m.integer("attention.value_length", "head_dim");
    m.number("attention.layer_norm_rms_epsilon",
             config.contains("rms_norm_eps") ? "rms_norm_eps" : "layer_norm_epsilon");
    m.integer("expert_used_count", "num_experts_per_tok");
    for (const char* experts : {"num_experts", "num_local_experts", "n_routed_experts"})
        m.integer("expert_count", experts);
    const bool gemma = out.architecture == "gemma3", mistral = config["model_type"] == "mistral";
    if (gemma || mistral) m.integer("attention.sliding_window", "sliding_window");
    if (out.architecture == "nemotron_h_moe") {
        std::vector<uint32_t> kv, width;
        for (const char kind : config["hybrid_override_pattern"].get<std::string>()) {
            kv.push_back(kind == '*' ? config["num_key_value_heads"].get<uint32_t>() : 0);
            width.push_back(kind == '-'   ? config["intermediate_size"].get<uint32_t>()
                            : kind == 'E' ? config["moe_intermediate_size"].get<uint32_t>()
                                          : 0);
        }
        out.add_array("attention.head_count_kv", std::move(kv));
        out.add_array("feed_forward_length", std::move(width));
        for (const auto& [key, field] : std::map<std::string, std::string>{
                 {"ssm.conv_kernel", "conv_kernel"},
                 {"ssm.state_size", "ssm_state_size"},
                 {"ssm.group_count", "n_groups"},
                 {"ssm.time_step_rank", "mamba_num_heads"},
                 {"expert_feed_forward_length", "moe_intermediate_size"},
                 {"expert_shared_feed_forward_length", "moe_shared_expert_intermediate_size"},
                 {"expert_shared_count", "n_shared_experts"},
                 {"expert_group_count", "n_group"},
                 {"expert_group_used_count", "topk_group"},
                 {"moe_latent_size", "moe_latent_size"}})
            m.integer(key, field);
        out.metadata.add("nemotron_h_moe.ssm.inner_size",
                         config["mamba_num_heads"].get<uint32_t>() * config["mamba_head_dim"].get<uint32_t>());
        out.metadata.add("nemotron_h_moe.rope.scaling.finetuned", false);
        m.boolean("expert_weights_norm", "norm_topk_prob");
        m.number("expert_weights_scale", "routed_scaling_factor");
    } else {
        m.integer("attention.head_count_kv", "num_key_value_heads");
        m.integer("feed_forward_length", "intermediate_size");
        m.integer("expert_feed_forward_length", "moe_intermediate_size");
        add_rope(out, config);
    }
    for (const auto& [key, field] : std::map<std::string, std::string>{
             {"bos_token_id", "bos_token_id"}, {"eos_token_id", "eos_token_id"}, {"padding_token_id", "pad_token_id"}})
        if (config.contains(field)) out.metadata.add("tokenizer.ggml." + key, config[field].get<uint32_t>());
}

}  // namespace

void GgufFromHf::add(std::string name, std::vector<int64_t> shape, const std::vector<float>& values) {
    EXPECT_EQ(product(shape), static_cast<int64_t>(values.size())) << name;
    const bool bf16 = shape.size() > 1 && name.find("norm") == name.npos && name.find("ssm_") == name.npos;
    std::vector<std::byte> bytes(values.size() * (bf16 ? 2 : 4));
    for (size_t i = 0; i < values.size(); ++i) {
        const uint16_t code = bf16_from_float(values[i]);
        if (bf16)
            std::memcpy(&bytes[2 * i], &code, 2);
        else
            std::memcpy(&bytes[4 * i], &values[i], 4);
    }
    specs.push_back({std::move(name), bf16 ? GgmlType::bf16 : GgmlType::f32, std::move(shape)});
    data.push_back(std::move(bytes));
}

void GgufFromHf::add_array(std::string_view key, std::vector<uint32_t> values) {
    kept.push_back(std::make_shared<const std::vector<uint32_t>>(std::move(values)));
    metadata.add(fmt::format("{}.{}", architecture, key), GgufArray::of(std::span<const uint32_t>(*kept.back())));
}

void GgufFromHf::remove(std::string_view name) {
    for (size_t i = 0; i < specs.size(); ++i)
        if (specs[i].name == name) {
            specs.erase(specs.begin() + static_cast<std::ptrdiff_t>(i));
            data.erase(data.begin() + static_cast<std::ptrdiff_t>(i));
            return;
        }
    FAIL() << "no tensor " << name;
}

void GgufFromHf::write(const std::filesystem::path& file) const {
    auto layout = GgufLayout::make(metadata, specs);
    ASSERT_TRUE(layout.ok()) << layout.error().message();
    auto writer = GgufFileWriter::create(file, *layout);
    ASSERT_TRUE(writer.ok()) << writer.error().message();
    for (size_t i = 0; i < data.size(); ++i) ASSERT_TRUE(writer->write(i, 0, data[i]).ok());
    ASSERT_TRUE(writer->finish().ok());
}

HfModel read_hf_model(const std::filesystem::path& folder) {
    HfModel model;
    auto config = read_json_file(folder / "config.json", {.python_constants = true});
    EXPECT_TRUE(config.ok());
    if (config.ok()) model.config = *config;
    const auto file = SafetensorsFile::open(folder / "model.safetensors");
    EXPECT_TRUE(file.ok());
    if (!file.ok()) return model;
    for (const TensorRecord& t : file->tensors()) {
        HfTensor out{t.name, t.shape, std::vector<float>(product(t.shape))};
        for (size_t i = 0; i < out.values.size(); ++i) {
            uint16_t code;
            if (t.dtype == DType::f32) {
                std::memcpy(&out.values[i], t.data.data() + 4 * i, 4);
            } else {
                std::memcpy(&code, t.data.data() + 2 * i, 2);
                out.values[i] = bf16_to_float(code);
            }
        }
        model.tensors.push_back(std::move(out));
    }
    return model;
}

HfModel random_model(Json config, uint32_t seed) {
    HfModel model{config, {}};
    const auto add = [&](const std::string& name, std::vector<int64_t> shape) {
        HfTensor t{name, std::move(shape), {}};
        for (int64_t i = product(t.shape); i > 0; --i) {
            seed = seed * 1664525u + 1013904223u;
            t.values.push_back(round_to_bf16((static_cast<float>(seed >> 8) - 8388608.0f) * 0x1p-24f));
        }
        model.tensors.push_back(std::move(t));
    };
    const int64_t hidden = config["hidden_size"], inner = config["intermediate_size"], d = config["head_dim"];
    const int64_t q = d * config["num_attention_heads"].get<int64_t>(),
                  kv = d * config["num_key_value_heads"].get<int64_t>();
    const bool gemma = config["model_type"] == "gemma3_text";
    add("model.embed_tokens.weight", {config["vocab_size"], hidden});
    for (int64_t l = 0, n = config["num_hidden_layers"]; l < n; ++l) {
        const std::string p = fmt::format("model.layers.{}.", l);
        add(p + "input_layernorm.weight", {hidden});
        add(p + "self_attn.q_proj.weight", {q, hidden});
        add(p + "self_attn.k_proj.weight", {kv, hidden});
        add(p + "self_attn.v_proj.weight", {kv, hidden});
        add(p + "self_attn.o_proj.weight", {hidden, q});
        if (config.value("attention_bias", false))
            for (const auto& [name, rows] :
                 {std::pair{"q", q}, std::pair{"k", kv}, std::pair{"v", kv}, std::pair{"o", hidden}})
                add(fmt::format("{}self_attn.{}_proj.bias", p, name), {rows});
        add(p + "post_attention_layernorm.weight", {hidden});
        if (gemma)
            for (const char* name : {"pre_feedforward_layernorm", "post_feedforward_layernorm"})
                add(fmt::format("{}{}.weight", p, name), {hidden});
        if (gemma)
            for (const char* name : {"self_attn.q_norm", "self_attn.k_norm"})
                add(fmt::format("{}{}.weight", p, name), {d});
        add(p + "mlp.gate_proj.weight", {inner, hidden});
        add(p + "mlp.up_proj.weight", {inner, hidden});
        add(p + "mlp.down_proj.weight", {hidden, inner});
    }
    add("model.norm.weight", {hidden});
    if (!config.value("tie_word_embeddings", false)) add("lm_head.weight", {config["vocab_size"], hidden});
    return model;
}

GgufFromHf convert_to_gguf(const HfModel& model) {
    GgufFromHf out{architecture_of(model.config), {}, {}, {}};
    add_metadata(out, model.config);
    const auto architecture = find_gguf_architecture(out.architecture);
    EXPECT_TRUE(architecture.ok());
    const auto description = model_config(model.config);
    EXPECT_TRUE(description.ok()) << description.error().message();
    const std::vector<GgufPart> parts = gguf_parts(*description, *architecture);
    std::map<std::string, std::map<int64_t, const HfTensor*>> stacks;
    for (const HfTensor& t : model.tensors) {
        const auto part = std::ranges::find(parts, t.name, &GgufPart::hf);
        EXPECT_TRUE(part != parts.end()) << t.name;
        if (part == parts.end()) continue;
        const std::string& name = part->gguf;
        auto shape = t.shape;
        auto values = t.values;
        switch (part->transform) {
            case GgufTransform::rope: {
                const bool keys = t.name.find("k_proj") != std::string::npos;
                values =
                    permute_heads(values, shape[0], model.config[keys ? "num_key_value_heads" : "num_attention_heads"]);
                break;
            }
            case GgufTransform::experts:
                stacks[name][part->expert] = &t;
                continue;
            case GgufTransform::norm_shift:
                for (float& v : values) v += 1.0f;
                break;
            case GgufTransform::a_log:
                for (float& v : values) v = -std::exp(v);
                [[fallthrough]];
            case GgufTransform::column:
                shape = {shape[0], 1};
                break;
            case GgufTransform::conv1d:
                shape = {shape[0], shape[2]};
                break;
            case GgufTransform::flatten:
                shape = {model.config["n_groups"], shape[0] / model.config["n_groups"].get<int64_t>()};
                break;
            case GgufTransform::none:
                break;
        }
        out.add(name, shape, values);
    }
    for (const auto& [name, experts] : stacks) {
        std::vector<float> values;
        for (const auto& [e, t] : experts) values.insert(values.end(), t->values.begin(), t->values.end());
        const auto& shape = experts.begin()->second->shape;
        out.add(name, {static_cast<int64_t>(experts.size()), shape[0], shape[1]}, values);
    }
    return out;
}

}  // namespace nibble::test
