#include "checkpoint/random_checkpoint.h"

#include "checkpoint/canonical_config.h"

#include "formats/minifloat.h"

#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cstring>
#include <random>

namespace nibble {
namespace {

constexpr std::array<std::string_view, 5> shapes{"smollm2-135m", "llama-8b", "qwen3-8b", "qwen3-30b-a3b",
                                                 "nemotron-3-nano"};

Json config_of(std::string_view shape) {
    if (shape == "smollm2-135m")
        return {{"model_type", "llama"},     {"hidden_size", 576},          {"num_hidden_layers", 30},
                {"num_attention_heads", 9},  {"num_key_value_heads", 3},    {"head_dim", 64},
                {"intermediate_size", 1536}, {"vocab_size", 49152},         {"rms_norm_eps", 1e-5},
                {"rope_theta", 100000.0},    {"tie_word_embeddings", true}, {"max_position_embeddings", 8192},
                {"hidden_act", "silu"}};
    if (shape == "llama-8b")
        return {{"model_type", "llama"},      {"hidden_size", 4096},          {"num_hidden_layers", 32},
                {"num_attention_heads", 32},  {"num_key_value_heads", 8},     {"head_dim", 128},
                {"intermediate_size", 14336}, {"vocab_size", 128256},         {"rms_norm_eps", 1e-5},
                {"rope_theta", 500000.0},     {"tie_word_embeddings", false}, {"max_position_embeddings", 131072},
                {"hidden_act", "silu"}};
    if (shape == "qwen3-8b")
        return {{"model_type", "qwen3"},      {"hidden_size", 4096},          {"num_hidden_layers", 36},
                {"num_attention_heads", 32},  {"num_key_value_heads", 8},     {"head_dim", 128},
                {"intermediate_size", 12288}, {"vocab_size", 151936},         {"rms_norm_eps", 1e-6},
                {"rope_theta", 1000000.0},    {"tie_word_embeddings", false}, {"max_position_embeddings", 40960},
                {"hidden_act", "silu"}};
    if (shape == "qwen3-30b-a3b")
        return {{"model_type", "qwen3_moe"},
                {"hidden_size", 2048},
                {"num_hidden_layers", 48},
                {"num_attention_heads", 32},
                {"num_key_value_heads", 4},
                {"head_dim", 128},
                {"intermediate_size", 6144},
                {"vocab_size", 151936},
                {"rms_norm_eps", 1e-6},
                {"rope_theta", 1000000.0},
                {"tie_word_embeddings", false},
                {"max_position_embeddings", 40960},
                {"hidden_act", "silu"},
                {"num_experts", 128},
                {"num_experts_per_tok", 8},
                {"moe_intermediate_size", 768},
                {"norm_topk_prob", true},
                {"decoder_sparse_step", 1},
                {"mlp_only_layers", Json::array()}};
    return {{"model_type", "nemotron_h"},
            {"hidden_size", 2688},
            {"num_hidden_layers", 52},
            {"hybrid_override_pattern", "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME"},
            {"num_attention_heads", 32},
            {"num_key_value_heads", 2},
            {"head_dim", 128},
            {"intermediate_size", 1856},
            {"moe_intermediate_size", 1856},
            {"moe_shared_expert_intermediate_size", 3712},
            {"n_routed_experts", 128},
            {"n_shared_experts", 1},
            {"num_experts_per_tok", 6},
            {"n_group", 1},
            {"topk_group", 1},
            {"norm_topk_prob", true},
            {"routed_scaling_factor", 2.5},
            {"mamba_num_heads", 64},
            {"mamba_head_dim", 64},
            {"n_groups", 8},
            {"ssm_state_size", 128},
            {"conv_kernel", 4},
            {"use_conv_bias", true},
            {"use_bias", false},
            {"mlp_bias", false},
            {"attention_bias", false},
            {"mamba_proj_bias", false},
            {"mamba_hidden_act", "silu"},
            {"mlp_hidden_act", "relu2"},
            {"vocab_size", 131072},
            {"layer_norm_epsilon", 1e-5},
            {"tie_word_embeddings", false},
            {"max_position_embeddings", 262144}};
}

struct Linears {  // how linears of the model are stored
    Format format = Format::none;
    ActivationFormat activation = ActivationFormat::none;
};

class RandomNames {
public:
    RandomNames(const Json& config, const Linears& linears) : config_(config), linears_(linears) {}

    void add(std::string name, std::vector<int64_t> shape, bool linear = false, DType dtype = DType::bf16) {
        CheckpointTensor t{.name = std::move(name), .shape = std::move(shape), .dtype = dtype, .file = "random"};
        if (linear) {
            t.format = linears_.format;
            t.activation = linears_.activation;
            if (stores_input_scale(t.activation)) t.input_scale = 0.01f;
        }
        t.stored_type = t.quantized() ? std::string(format_name(t.format)) : std::string(dtype_name(dtype));
        tensors.push_back(std::move(t));
    }
    void attention(const std::string& prefix) {
        const int64_t dim = head_dim(), q = at("num_attention_heads") * dim, kv = kv_heads() * dim;
        add(prefix + ".q_proj.weight", {q, at("hidden_size")}, true);
        add(prefix + ".k_proj.weight", {kv, at("hidden_size")}, true);
        add(prefix + ".v_proj.weight", {kv, at("hidden_size")}, true);
        add(prefix + ".o_proj.weight", {at("hidden_size"), q}, true);
        const std::string family = config_.value("model_type", "");
        const bool bias = family == "qwen2" || config_.value("attention_bias", false);
        if (bias)
            for (const auto& [name, rows] : {std::pair{".q_proj.bias", q}, {".k_proj.bias", kv}, {".v_proj.bias", kv}})
                add(prefix + name, {rows});
        if (bias && family != "qwen2") add(prefix + ".o_proj.bias", {at("hidden_size")});
        if (family == "qwen3" || family == "qwen3_moe" || family == "gemma3_text")
            for (const char* norm : {".q_norm.weight", ".k_norm.weight"}) add(prefix + norm, {dim});
    }
    void mlp(const std::string& prefix, int64_t width, bool gated, int64_t outer = 0) {  // outer 0: the hidden width
        if (outer == 0) outer = at("hidden_size");
        if (gated) add(prefix + ".gate_proj.weight", {width, outer}, true);
        add(prefix + ".up_proj.weight", {width, outer}, true);
        add(prefix + ".down_proj.weight", {outer, width}, true);
    }
    void dense_mlp(const std::string& prefix, bool gated) {
        const int64_t width = at("intermediate_size");
        mlp(prefix, width, gated);
        if (!config_.value("mlp_bias", false)) return;
        if (gated) add(prefix + ".gate_proj.bias", {width});
        add(prefix + ".up_proj.bias", {width});
        add(prefix + ".down_proj.bias", {at("hidden_size")});
    }
    void mixtral_experts(const std::string& prefix) {
        const int64_t count = at("num_local_experts"), width = at("intermediate_size"), hidden = at("hidden_size");
        add(prefix + ".gate.weight", {count, hidden});
        for (int64_t e = 0; e < count; ++e) {
            const std::string expert = fmt::format("{}.experts.{}", prefix, e);
            add(expert + ".w1.weight", {width, hidden}, true);
            add(expert + ".w2.weight", {hidden, width}, true);
            add(expert + ".w3.weight", {width, hidden}, true);
        }
    }
    void experts(const std::string& prefix, int64_t count, bool gated) {
        const auto narrow = config_.find("moe_latent_size");
        const int64_t latent = narrow != config_.end() && narrow->is_number() ? narrow->get<int64_t>() : 0;
        add(prefix + ".gate.weight", {count, at("hidden_size")});
        for (int64_t e = 0; e < count; ++e)
            mlp(fmt::format("{}.experts.{}", prefix, e), at("moe_intermediate_size"), gated, latent);
        if (latent == 0) return;
        add(prefix + ".fc1_latent_proj.weight", {latent, at("hidden_size")}, true);
        add(prefix + ".fc2_latent_proj.weight", {at("hidden_size"), latent}, true);
    }
    void latent_attention(const std::string& prefix) {
        const int64_t heads = at("num_attention_heads"), nope = at("qk_nope_head_dim"), rope = at("qk_rope_head_dim");
        const int64_t rank = at("kv_lora_rank"), v = at("v_head_dim"), hidden = at("hidden_size");
        const auto q_rank = config_.find("q_lora_rank");
        if (q_rank != config_.end() && q_rank->is_number()) {
            const auto low = q_rank->get<int64_t>();
            add(prefix + ".q_a_proj.weight", {low, hidden}, true);
            add(prefix + ".q_a_layernorm.weight", {low});
            add(prefix + ".q_b_proj.weight", {heads * (nope + rope), low}, true);
        } else {
            add(prefix + ".q_proj.weight", {heads * (nope + rope), hidden}, true);
        }
        add(prefix + ".kv_a_proj_with_mqa.weight", {rank + rope, hidden}, true);
        add(prefix + ".kv_a_layernorm.weight", {rank});
        add(prefix + ".kv_b_proj.weight", {heads * (nope + v), rank}, true);
        add(prefix + ".o_proj.weight", {hidden, heads * v}, true);
    }
    void deepseek(const std::string& prefix) {
        experts(prefix, at("n_routed_experts"), true);
        add(prefix + ".gate.e_score_correction_bias", {at("n_routed_experts")}, false, DType::f32);
        if (const int64_t shared = at("n_shared_experts"); shared > 0)
            mlp(prefix + ".shared_experts", shared * at("moe_intermediate_size"), true);
    }
    void mamba(const std::string& prefix) {
        const int64_t heads = at("mamba_num_heads"), inner = heads * at("mamba_head_dim");
        const int64_t channels = inner + 2 * at("n_groups") * at("ssm_state_size");
        add(prefix + ".in_proj.weight", {inner + channels + heads, at("hidden_size")}, true);
        add(prefix + ".out_proj.weight", {at("hidden_size"), inner}, true);
        add(prefix + ".conv1d.weight", {channels, 1, at("conv_kernel")});
        add(prefix + ".conv1d.bias", {channels});
        for (const char* name : {".A_log", ".D", ".dt_bias"}) add(prefix + name, {heads}, false, DType::f32);
        add(prefix + ".norm.weight", {inner});
    }
    int64_t at(const char* key) const { return config_.at(key).get<int64_t>(); }
    int64_t kv_heads() const {
        const auto own = config_.find("num_key_value_heads");
        return own != config_.end() && own->is_number() ? own->get<int64_t>() : at("num_attention_heads");
    }
    int64_t head_dim() const {
        const auto own = config_.find("head_dim");
        return own != config_.end() && own->is_number() ? own->get<int64_t>()
                                                        : at("hidden_size") / at("num_attention_heads");
    }

    std::vector<CheckpointTensor> tensors;

private:
    const Json& config_;
    Linears linears_;
};

void transformer(RandomNames& names, const std::string& family) {
    const int64_t hidden = names.at("hidden_size");
    const int64_t dense = family == "deepseek_v3" ? names.at("first_k_dense_replace") : 0;
    names.add("model.embed_tokens.weight", {names.at("vocab_size"), hidden});
    for (int64_t i = 0; i < names.at("num_hidden_layers"); ++i) {
        const std::string layer = fmt::format("model.layers.{}", i);
        names.add(layer + ".input_layernorm.weight", {hidden});
        if (family == "deepseek_v3")
            names.latent_attention(layer + ".self_attn");
        else
            names.attention(layer + ".self_attn");
        names.add(layer + ".post_attention_layernorm.weight", {hidden});
        if (family == "gemma3_text")
            for (const char* norm : {".pre_feedforward_layernorm.weight", ".post_feedforward_layernorm.weight"})
                names.add(layer + norm, {hidden});
        if (family == "mixtral")
            names.mixtral_experts(layer + ".block_sparse_moe");
        else if (family == "qwen3_moe")
            names.experts(layer + ".mlp", names.at("num_local_experts"), true);
        else if (family == "deepseek_v3" && i >= dense)
            names.deepseek(layer + ".mlp");
        else
            names.dense_mlp(layer + ".mlp", true);
    }
    names.add("model.norm.weight", {hidden});
}

void nemotron_layers(RandomNames& names, const std::string& root, const Json& kinds) {
    const int64_t hidden = names.at("hidden_size");
    for (size_t i = 0; i < kinds.size(); ++i) {
        const std::string layer = fmt::format("{}.layers.{}", root, i), mixer = layer + ".mixer";
        names.add(layer + ".norm.weight", {hidden});
        if (kinds[i] == "linear_attention") names.mamba(mixer);
        if (kinds[i] == "full_attention") names.attention(mixer);
        if (kinds[i] == "mlp") names.dense_mlp(mixer, false);
        if (kinds[i] != "moe") continue;
        names.experts(mixer, names.at("n_routed_experts"), false);
        names.add(mixer + ".gate.e_score_correction_bias", {names.at("n_routed_experts")}, false, DType::f32);
        names.mlp(mixer + ".shared_experts", names.at("moe_shared_expert_intermediate_size"), false);
    }
}

void nemotron(RandomNames& names, const Json& kinds) {
    const int64_t hidden = names.at("hidden_size");
    names.add("backbone.embeddings.weight", {names.at("vocab_size"), hidden});
    nemotron_layers(names, "backbone", kinds);
    names.add("backbone.norm_f.weight", {hidden});
}

// Attention and experts behind one another, as the larger published models have them.
void nemotron_prediction(RandomNames& names) {
    const int64_t hidden = names.at("hidden_size");
    names.add("mtp.layers.0.eh_proj.weight", {hidden, 2 * hidden});
    for (const char* norm : {"0.enorm", "0.hnorm", "1.final_layernorm"})
        names.add(fmt::format("mtp.layers.{}.weight", norm), {hidden});
    nemotron_layers(names, "mtp", {"full_attention", "moe"});
}

// Every tensor begins somewhere else in one pool of random numbers and goes round in it, so that a value depends on its
// place alone, whatever rows it is read with. The pool lies in memory twice: rows that go round are in one piece too.
class RandomCheckpoint : public Checkpoint {
public:
    RandomCheckpoint(std::string_view shape, Json config, std::vector<CheckpointTensor> tensors)
        : path_(shape),
          config_(std::move(config)),
          tensors_(std::move(tensors)),
          plain_(2 * period),
          codes_(2 * period) {
        std::mt19937_64 random(1);
        for (size_t i = 0; i < period; ++i) {
            const auto bits = static_cast<uint32_t>(random());
            const float x = static_cast<float>(static_cast<int32_t>(bits)) * 0x1p-31f;  // uniform in [-1, 1)
            plain_[i] = plain_[period + i] = bf16_from_float(0.05f * x);
            codes_[i] = codes_[period + i] = static_cast<uint8_t>(bits & 0xBFu);  // as E4M3: below 2, never NaN
        }
        for (CheckpointTensor& t : tensors_)
            t.stored_bytes = t.quantized() ? code_bytes(t.format, t.rows(), t.cols()) : 2 * t.rows() * t.cols();
    }

    const std::filesystem::path& path() const override { return path_; }
    Dialect dialect() const override { return Dialect::plain; }
    const Json& config() const override { return config_; }
    KvFormat kv() const override { return KvFormat::none; }
    std::span<const CheckpointTensor> tensors() const override { return tensors_; }

    Result<MatrixView> read_plain(size_t index, int64_t begin, int64_t count, Matrix& scratch) const override {
        const CheckpointTensor& t = tensors_[index];
        const auto n = static_cast<size_t>(count * t.cols());
        size_t at = place(index, begin * t.cols());
        const bool vector = t.shape.size() == 1;
        if (!vector && t.dtype == DType::bf16 && n <= period)
            return MatrixView{DType::bf16, count, t.cols(), reinterpret_cast<const std::byte*>(&plain_[at])};
        scratch = Matrix(t.dtype, count, t.cols());
        for (size_t i = 0; i < n; ++i, at = at + 1 == period ? 0 : at + 1) {
            // Vectors are norms, biases, decays: about one.
            const float x = (vector ? 1.0f : 0.0f) + bf16_to_float(plain_[at]);
            const uint16_t narrow = bf16_from_float(x);
            if (t.dtype == DType::f32)
                std::memcpy(scratch.data.data() + 4 * i, &x, 4);
            else
                std::memcpy(scratch.data.data() + 2 * i, &narrow, 2);
        }
        return scratch.view();
    }
    Result<QuantView> read_quant(size_t index, int64_t begin, int64_t count, QuantMatrix& scratch) const override {
        const CheckpointTensor& t = tensors_[index];
        scratch = QuantMatrix(t.format, count, t.cols());
        fill(scratch.codes, index, begin, count, [](uint8_t c) { return c; });
        const bool e8m0 = t.format != Format::nvfp4 && t.format != Format::nvfp4_bs32;
        fill(scratch.block_scales, index, begin, count, [&](uint8_t c) {
            return static_cast<uint8_t>(e8m0 ? 118 + c % 3 : 0x30 + c % 16);  // 2^-9 ...; 0.5 to 1.9
        });
        std::ranges::fill(scratch.float_scales, 0.02f);
        const bool fp4 = t.format == Format::nvfp4 || t.format == Format::nvfp4_bs32;
        scratch.tensor_scale = fp4 ? 0.007f : t.format == Format::fp8 ? 0.02f : 1.0f;
        return scratch.view();
    }
    void done_with(size_t, int64_t, int64_t) const override {}
    Result<std::vector<SideFile>> side_files() const override { return std::vector<SideFile>{}; }

private:
    static constexpr size_t period = (size_t{16} << 20) - 3;  // a prime: no two rows of a matrix are the same
    static size_t place(size_t index, int64_t element) {
        return (index * 977 * 64 + static_cast<size_t>(element)) % period;
    }
    // `to` holds `count` rows of bytes, the first of them row `begin` of the tensor.
    template <class Change>
    void fill(std::vector<uint8_t>& to, size_t index, int64_t begin, int64_t count, const Change& change) const {
        if (to.empty()) return;
        size_t at = place(index, begin * (std::ssize(to) / count));
        for (uint8_t& c : to) {
            c = change(codes_[at]);
            if (++at == period) at = 0;
        }
    }

    std::filesystem::path path_;
    Json config_;
    std::vector<CheckpointTensor> tensors_;
    std::vector<uint16_t> plain_;
    std::vector<uint8_t> codes_;
};

ActivationFormat usual_inputs(Format format) {
    switch (format) {
        case Format::nvfp4:
        case Format::nvfp4_bs32:
            return ActivationFormat::nvfp4;
        case Format::fp8:
            return ActivationFormat::fp8;
        case Format::fp8_row:
            return ActivationFormat::fp8_token;
        case Format::fp8_block128:
            return ActivationFormat::fp8_group128;
        case Format::mxfp8:
            return ActivationFormat::mxfp8;
        case Format::mxfp4:
            return ActivationFormat::mxfp4;
        default:
            return ActivationFormat::none;
    }
}

Result<std::unique_ptr<Checkpoint>> make_random(std::string_view name, Json config, const Linears& linears, bool head,
                                                bool prediction = false) {
    if (prediction) {
        config["num_nextn_predict_layers"] = 1;
        config["mtp_hybrid_override_pattern"] = "*E";
    }
    NIBBLE_TRY(const Json canonical, canonical_config(config));
    RandomNames names(canonical, linears);
    const std::string family = canonical.value("model_type", "");
    if (family == "nemotron_h")
        nemotron(names, canonical["layers_block_type"]);
    else
        transformer(names, family);
    if (!canonical.value("tie_word_embeddings", false))
        names.add("lm_head.weight", {names.at("vocab_size"), names.at("hidden_size")}, head);
    if (prediction) {
        RandomNames more(canonical, {});
        nemotron_prediction(more);
        std::ranges::move(more.tensors, std::back_inserter(names.tensors));
    }
    return std::unique_ptr<Checkpoint>(
        std::make_unique<RandomCheckpoint>(name, std::move(config), std::move(names.tensors)));
}

}  // namespace

Result<Json> shape_config(std::string_view shape) {
    if (std::ranges::find(shapes, shape) == shapes.end())
        return fail("unknown shape '{}'; choices: {}", shape, fmt::join(shapes, ", "));
    return config_of(shape);
}

Result<std::unique_ptr<Checkpoint>> random_checkpoint(Json config) {
    constexpr std::array<std::string_view, 9> families{"llama",     "mistral",     "mixtral",     "qwen2",     "qwen3",
                                                       "qwen3_moe", "gemma3_text", "deepseek_v3", "nemotron_h"};
    const std::string family = config.value("model_type", "");
    if (std::ranges::find(families, family) == families.end())
        return fail("config.json: weights of the family '{}' cannot be made up; families: {}", family,
                    fmt::join(families, ", "));
    NIBBLE_TRY(const Json canonical, canonical_config(config));
    std::vector<const char*> keys{"vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads",
                                  "intermediate_size"};
    if (family == "mixtral" || family == "qwen3_moe") keys.push_back("num_local_experts");
    if (family == "qwen3_moe") keys.push_back("moe_intermediate_size");
    if (family == "deepseek_v3")
        keys.insert(keys.end(), {"moe_intermediate_size", "n_routed_experts", "n_shared_experts", "kv_lora_rank",
                                 "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "first_k_dense_replace"});
    if (family == "nemotron_h")
        keys.insert(keys.end(), {"mamba_num_heads", "mamba_head_dim", "n_groups", "ssm_state_size", "conv_kernel",
                                 "moe_intermediate_size", "n_routed_experts", "moe_shared_expert_intermediate_size"});
    for (const char* key : keys) {
        const auto value = canonical.find(key);
        if (value == canonical.end() || !value->is_number_integer() || value->get<int64_t>() <= 0)
            return fail("config.json: '{}' must be a whole number above 0", key);
    }
    // Of the published weights, not of these (DeepSeek-V3's are FP8).
    for (const char* key : {"quantization_config", "compression_config"}) config.erase(key);
    return make_random(family, std::move(config), {}, false);
}

Result<std::unique_ptr<Checkpoint>> random_checkpoint(const RandomModel& model) {
    const std::string& shape = model.shape;
    if (std::ranges::find(shapes, shape) == shapes.end())
        return fail("--shape: unknown shape '{}'; choices: {}", shape, fmt::join(shapes, ", "));
    Linears linears;
    if (model.format != "bf16") {
        const auto known = format_from_name(model.format);
        if (!known) return fail("--format: unknown format '{}'", model.format);
        linears.format = *known;
        if (model.inputs) linears.activation = usual_inputs(*known);
    }
    Json config = config_of(shape);
    if (model.layers > 0 && model.layers < config["num_hidden_layers"].get<int>()) {
        config["num_hidden_layers"] = model.layers;
        if (config.contains("hybrid_override_pattern"))
            config["hybrid_override_pattern"] =
                config["hybrid_override_pattern"].get<std::string>().substr(0, size_t(model.layers));
    }
    if (model.vocab > 0) config["vocab_size"] = std::min(model.vocab, config["vocab_size"].get<int64_t>());
    if (model.prediction && shape != "nemotron-3-nano")
        return fail("--shape {}: has no layers for multi-token prediction (nemotron-3-nano has)", shape);
    return make_random(shape, std::move(config), linears, model.head, model.prediction);
}

}  // namespace nibble
