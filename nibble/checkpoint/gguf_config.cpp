#include "checkpoint/gguf_config.h"

#include "checkpoint/gguf_names.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>

namespace nibble {
namespace {

// Keys below "<architecture>." that a config builder reads. Any other key might change the numbers, so it is an error.
constexpr std::array common_keys{"context_length",
                                 "embedding_length",
                                 "block_count",
                                 "feed_forward_length",
                                 "vocab_size",
                                 "attention.head_count",
                                 "attention.head_count_kv",
                                 "attention.layer_norm_rms_epsilon",
                                 "attention.key_length",
                                 "attention.value_length",
                                 "rope.freq_base",
                                 "rope.dimension_count",
                                 "rope.scale_linear",
                                 "rope.scaling.type",
                                 "rope.scaling.factor",
                                 "rope.scaling.original_context_length",
                                 "rope.scaling.finetuned",
                                 "rope.scaling.yarn_beta_fast",
                                 "rope.scaling.yarn_beta_slow"};
constexpr std::array llama_keys{"expert_count", "expert_used_count", "attention.sliding_window", "tensor_data_layout"};
constexpr std::array qwen3moe_keys{"expert_count", "expert_used_count", "expert_feed_forward_length",
                                   "expert_weights_norm", "expert_gating_func"};
constexpr std::array gemma3_keys{"attention.sliding_window", "attention.sliding_window_pattern", "rope.freq_base_swa",
                                 "final_logit_softcapping"};
constexpr std::array nemotron_h_keys{"ssm.conv_kernel",
                                     "ssm.state_size",
                                     "ssm.group_count",
                                     "ssm.time_step_rank",
                                     "ssm.inner_size",
                                     "expert_count",
                                     "expert_used_count",
                                     "expert_feed_forward_length",
                                     "expert_shared_feed_forward_length",
                                     "expert_shared_count",
                                     "expert_weights_norm",
                                     "expert_weights_scale",
                                     "expert_gating_func",
                                     "expert_group_count",
                                     "expert_group_used_count",
                                     "moe_latent_size",
                                     "nextn_predict_layers",
                                     "attention.layer_norm_epsilon"};

// GGUF holds FP32 where config.json held a short decimal: 1e-05, not 9.999999747378752e-06.
double shortest_decimal(double f32) { return std::strtod(fmt::format("{}", static_cast<float>(f32)).c_str(), nullptr); }

class ConfigBuilder {
public:
    explicit ConfigBuilder(const GgufFile& file) : file_(file), m_(file.metadata()) {}

    Result<Json> build() {
        NIBBLE_TRY(const std::string_view name, m_.string("general.architecture"));
        arch_ = name;
        NIBBLE_CHECK(architecture());
        NIBBLE_CHECK(token_ids());
        c_["tie_word_embeddings"] = !has_own_head(file_);
        c_["torch_dtype"] = "bfloat16";
        c_["use_cache"] = true;
        return std::move(c_);
    }

private:
    Status architecture() {
        NIBBLE_TRY(row_, find_gguf_architecture(arch_));
        if (!row_.model_type.empty()) return by_row();
        if (arch_ == "llama") return llama();
        if (arch_ == "qwen2" || arch_ == "qwen3" || arch_ == "qwen3moe") return qwen();
        if (arch_ == "gemma3") return gemma3();
        if (arch_ == "seed_oss") return seed_oss();
        if (arch_ == "nemotron_h" || arch_ == "nemotron_h_moe") return nemotron_h();
        return fail("no config.json is known for GGUF architecture {}", gguf_shown(arch_));
    }

    std::string key(std::string_view name) const { return fmt::format("{}.{}", arch_, name); }
    bool has(std::string_view name) const { return m_.has(key(name)); }
    bool has_tensor(std::string_view name) const { return file_.find_tensor(name) != nullptr; }
    bool any_layer_has(std::string_view suffix) const {
        return std::ranges::any_of(file_.tensors(), [&](const GgufTensor& t) {
            return t.name.starts_with("blk.") && t.name.substr(t.name.find('.', 4) + 1) == suffix;
        });
    }
    bool layer_has(int64_t layer, std::string_view suffix) const {
        return has_tensor(fmt::format("blk.{}.{}", layer, suffix));
    }

    Status integer(std::string_view field, std::string_view name) {
        NIBBLE_TRY(c_[std::string(field)], m_.integer(key(name)));
        return Ok{};
    }
    Status number(std::string_view field, std::string_view name) {
        NIBBLE_TRY(const double value, finite(key(name)));
        c_[std::string(field)] = shortest_decimal(value);
        return Ok{};
    }
    Result<double> finite(const std::string& full_key) const {
        NIBBLE_TRY(const double value, m_.number(full_key));
        if (!std::isfinite(value)) return fail("metadata key '{}' is {}", full_key, value);
        return value;
    }
    Result<double> finite_or(const std::string& full_key, double fallback) const {
        return m_.has(full_key) ? finite(full_key) : fallback;
    }
    // Reads a dimension, limited so that the product of two dimensions cannot overflow.
    Result<int64_t> size(std::string_view name) const {
        NIBBLE_TRY(const int64_t value, uniform(name));
        if (value < 1 || value > INT32_MAX) return fail("metadata key '{}' is {}", key(name), value);
        return value;
    }
    // Every layer has at least one tensor; a larger count is rejected, because loops would follow it.
    Result<int64_t> layer_count() const {
        NIBBLE_TRY(const int64_t layers, size("block_count"));
        if (layers > static_cast<int64_t>(file_.tensors().size()))
            return fail("metadata key '{}' is {}, the file has {} tensors", key("block_count"), layers,
                        file_.tensors().size());
        return layers;
    }

    // Reads a value that GGUF may store once or per layer, but that the Hugging Face model has only once.
    Result<int64_t> uniform(std::string_view name) const {
        NIBBLE_TRY(const auto values, m_.integers(key(name)));
        if (values.empty()) return fail("metadata key '{}' is an empty array", key(name));
        if (std::ranges::any_of(values, [&](int64_t v) { return v != values[0]; }))
            return fail("metadata key '{}' differs from layer to layer; the Hugging Face model has one value",
                        key(name));
        return values[0];
    }

    template <class List>
    Status only_known_keys(const List& extra) const {
        const std::string prefix = arch_ + ".";
        for (const GgufKv& kv : m_.entries()) {
            if (!kv.key.starts_with(prefix)) continue;
            const std::string_view name = std::string_view(kv.key).substr(prefix.size());
            if (!std::ranges::count(common_keys, name) && !std::ranges::count(extra, name))
                return fail("metadata key {} is not known for this architecture: its effect would be lost",
                            gguf_shown(kv.key));
        }
        return Ok{};
    }

    void identity(std::string_view architecture, std::string_view model_type) {
        c_["architectures"] = Json::array({architecture});
        c_["model_type"] = model_type;
    }

    Status sizes() {
        NIBBLE_TRY(c_["hidden_size"], size("embedding_length"));
        NIBBLE_TRY(c_["num_hidden_layers"], layer_count());
        NIBBLE_TRY(c_["num_attention_heads"], size("attention.head_count"));
        NIBBLE_TRY(c_["num_key_value_heads"],
                   size(has("attention.head_count_kv") ? "attention.head_count_kv" : "attention.head_count"));
        NIBBLE_TRY(c_["head_dim"], gguf_head_dim(m_, arch_));
        NIBBLE_TRY(c_["intermediate_size"], size("feed_forward_length"));
        return row_.model_type.empty() ? limits("rms_norm_eps") : Status(Ok{});
    }

    Status limits(std::string_view epsilon, std::string_view name = "layer_norm_rms_epsilon") {
        NIBBLE_CHECK(integer("max_position_embeddings", "context_length"));
        NIBBLE_CHECK(number(epsilon, fmt::format("attention.{}", name)));
        const GgufTensor* embeddings = file_.find_tensor("token_embd.weight");
        if (!embeddings || embeddings->shape.size() != 2) return fail("the file has no matrix 'token_embd.weight'");
        c_["vocab_size"] = embeddings->shape[0];
        return Ok{};
    }

    Status rope(double default_base) {
        NIBBLE_TRY(const double base_f32, finite_or(key("rope.freq_base"), default_base));
        c_["rope_theta"] = shortest_decimal(base_f32);
        const int64_t head_dim = c_["head_dim"];
        NIBBLE_TRY(const int64_t rotated, m_.integer_or(key("rope.dimension_count"), head_dim));
        if (row_.partial && (rotated < 0 || rotated > head_dim || rotated % 2 != 0))
            return fail("metadata key '{}' is {}, the heads have {}", key("rope.dimension_count"), rotated, head_dim);
        if (row_.partial)
            c_[row_.partial] = std::string_view(row_.partial) == "rotary_dim"
                                   ? Json(rotated)
                                   : Json(static_cast<double>(rotated) / static_cast<double>(head_dim));
        if (rotated != head_dim && !row_.partial)
            return fail("metadata key '{}' is {}, the heads have {}: partial rotation has no field in config.json",
                        key("rope.dimension_count"), rotated, head_dim);
        NIBBLE_TRY(Json scaling, rope_scaling(base_f32));
        if (!scaling.is_null()) c_["rope_scaling"] = std::move(scaling);
        return Ok{};
    }

    Result<Json> rope_scaling(double base) const {
        NIBBLE_TRY(std::string_view type, m_.string_or(key("rope.scaling.type"), "none"));
        const bool legacy_linear = type == "none" && has("rope.scale_linear");
        if (const GgufTensor* divisors = file_.find_tensor("rope_freqs.weight")) {
            if (type != "none" || legacy_linear)
                return fail("both rope_freqs.weight and rope scaling {}", gguf_shown(type));
            if (divisors->type != GgmlType::f32) return fail("rope_freqs.weight is not F32");
            std::vector<float> values(divisors->data.size() / sizeof(float));
            std::memcpy(values.data(), divisors->data.data(), divisors->data.size());
            if (static_cast<int64_t>(values.size()) * 2 != c_["head_dim"].get<int64_t>())
                return fail("rope_freqs.weight has {} values for heads of {}", values.size(), c_["head_dim"].dump());
            return llama3_rope_scaling(values, base);
        }
        if (type == "none" && !legacy_linear) return Json();
        if (type != "linear" && type != "yarn" && !legacy_linear)
            return fail("metadata key '{}': scaling {} is not supported", key("rope.scaling.type"), gguf_shown(type));
        NIBBLE_TRY(const double factor, finite(key(legacy_linear ? "rope.scale_linear" : "rope.scaling.factor")));
        Json scaling;
        scaling["rope_type"] = type == "yarn" ? "yarn" : "linear";
        scaling["factor"] = shortest_decimal(factor);
        if (type == "yarn") {
            NIBBLE_TRY(scaling["original_max_position_embeddings"],
                       m_.integer(key("rope.scaling.original_context_length")));
            for (const char* beta : {"beta_fast", "beta_slow"}) {
                const std::string name = key(fmt::format("rope.scaling.yarn_{}", beta));
                if (!m_.has(name)) continue;
                NIBBLE_TRY(const double value, finite(name));
                scaling[beta] = shortest_decimal(value);
            }
            if (row_.yarn_mscale) NIBBLE_CHECK(yarn_mscale(scaling));
        }
        return scaling;
    }

    Status yarn_mscale(Json& scaling) const {
        NIBBLE_TRY(const double all_dim, finite_or(key("rope.scaling.yarn_log_multiplier"), 0));
        NIBBLE_TRY(const double beta, finite_or(key("attention.temperature_scale"), 0));
        scaling["mscale"] = 1.0;
        scaling["mscale_all_dim"] = shortest_decimal(all_dim);
        scaling["llama_4_scaling_beta"] = shortest_decimal(beta);
        return Ok{};
    }

    // Reads the keys of an architecture that its row describes.
    Status by_row() {
        std::vector<std::string> known{"expert_gating_func", "attention.layer_norm_epsilon"};
        for (const GgufField& field : row_.fields) known.emplace_back(field.key);
        if (row_.window_period > 0)
            known.insert(known.end(), {"attention.sliding_window", "attention.sliding_window_pattern"});
        if (row_.yarn_mscale)
            known.insert(known.end(), {"rope.scaling.yarn_log_multiplier", "attention.temperature_scale"});
        NIBBLE_CHECK(only_known_keys(known));
        const bool slides = has("attention.sliding_window");
        const bool other = slides && !row_.sliding_type.empty();
        identity(other ? row_.sliding_class : row_.hf_class, other ? row_.sliding_type : row_.model_type);
        c_[row_.activation_field] = row_.activation;
        NIBBLE_CHECK(sizes());
        NIBBLE_CHECK(limits(row_.epsilon, row_.layer_norm ? "layer_norm_epsilon" : "layer_norm_rms_epsilon"));
        NIBBLE_CHECK(rope(10000));
        if (other) c_["rope_local_base_freq"] = c_["rope_theta"];
        for (const GgufBias& bias : row_.biases) c_[bias.field] = any_layer_has(bias.tensor);
        for (const GgufField& field : row_.fields) NIBBLE_CHECK(read_field(field));
        if (row_.gating > 0) NIBBLE_CHECK(gating_is(row_.gating, "a sigmoid"));
        if (row_.query_scale_layers > 0) query_scale(row_.query_scale_layers);
        if (row_.window_period == 0 || !slides) {
            c_["sliding_window"] = nullptr;
            return Ok{};
        }
        NIBBLE_CHECK(integer("sliding_window", "attention.sliding_window"));
        return layer_types(row_.window_period);
    }

    Status read_field(const GgufField& field) {
        switch (field.kind) {
            case GgufField::Kind::integer:
                return integer(field.field, field.key);
            case GgufField::Kind::number:
                return number(field.field, field.key);
            case GgufField::Kind::boolean:
                break;
        }
        NIBBLE_TRY(c_[field.field], m_.boolean(key(field.key)));
        return Ok{};
    }

    // GGUF does not store the query scale of Gemma. As llama.cpp does: the 27B model, known by its number of layers,
    // scales by hidden / heads, others by head_dim.
    void query_scale(int64_t layers_of_27b) {
        const int64_t layers = c_["num_hidden_layers"], hidden = c_["hidden_size"], heads = c_["num_attention_heads"];
        c_["query_pre_attn_scalar"] = layers == layers_of_27b ? hidden / heads : c_["head_dim"].get<int64_t>();
    }

    Status layer_types(uint32_t otherwise) {
        NIBBLE_TRY(const int64_t period, m_.integer_or(key("attention.sliding_window_pattern"), otherwise));
        if (period < 1) return fail("metadata key '{}' is {}", key("attention.sliding_window_pattern"), period);
        c_["layer_types"] = Json::array();
        for (int64_t l = 0, layers = c_["num_hidden_layers"]; l < layers; ++l)
            c_["layer_types"].push_back((l + 1) % period != 0 ? "sliding_attention" : "full_attention");
        return Ok{};
    }

    Status token_ids() {
        for (const auto& [field, name] : {std::pair{"bos_token_id", "tokenizer.ggml.bos_token_id"},
                                          std::pair{"eos_token_id", "tokenizer.ggml.eos_token_id"},
                                          std::pair{"pad_token_id", "tokenizer.ggml.padding_token_id"}}) {
            if (!m_.has(name)) continue;
            NIBBLE_TRY(c_[field], m_.integer(name));
        }
        return Ok{};
    }

    Status gating_is(int64_t expected, std::string_view meaning) const {
        NIBBLE_TRY(const int64_t gating, m_.integer_or(key("expert_gating_func"), expected));
        if (gating != expected)
            return fail("metadata key '{}' is {}: the Hugging Face model gates with {}", key("expert_gating_func"),
                        gating, meaning);
        return Ok{};
    }

    // GGUF's "llama" stands for three families: Mixtral if there are experts, Mistral if attention has a sliding
    // window, else Llama.
    Status llama() {
        NIBBLE_CHECK(only_known_keys(llama_keys));
        NIBBLE_TRY(const int64_t experts, m_.integer_or(key("expert_count"), 0));
        const bool slides = has("attention.sliding_window");
        if (experts > 0) {
            identity("MixtralForCausalLM", "mixtral");
        } else if (slides) {
            identity("MistralForCausalLM", "mistral");
        } else {
            identity("LlamaForCausalLM", "llama");
        }
        c_["hidden_act"] = "silu";
        NIBBLE_CHECK(sizes());
        NIBBLE_CHECK(rope(10000));
        if (slides) {
            NIBBLE_CHECK(integer("sliding_window", "attention.sliding_window"));
        } else if (experts > 0) {
            c_["sliding_window"] = nullptr;  // explicit, because transformers' default is not null in all versions
        }
        const bool attention_bias = any_layer_has("attn_q.bias"), mlp_bias = any_layer_has("ffn_up.bias");
        if (experts > 0 || slides) {
            if (attention_bias || mlp_bias)
                return fail("the Hugging Face {} model has no biases", c_["model_type"].dump());
        } else {
            c_["attention_bias"] = attention_bias;
            c_["mlp_bias"] = mlp_bias;
        }
        if (experts == 0) return Ok{};
        c_["num_local_experts"] = experts;
        return integer("num_experts_per_tok", "expert_used_count");
    }

    Status seed_oss() {
        NIBBLE_CHECK(only_known_keys(std::array<const char*, 0>{}));
        identity("SeedOssForCausalLM", "seed_oss");
        c_["hidden_act"] = "silu";
        NIBBLE_CHECK(sizes());
        NIBBLE_CHECK(rope(10000));
        c_["attention_bias"] = any_layer_has("attn_q.bias");
        c_["attention_out_bias"] = any_layer_has("attn_output.bias");
        c_["mlp_bias"] = false;
        return Ok{};
    }

    Status qwen() {
        const bool moe = arch_ == "qwen3moe";
        if (moe) {
            NIBBLE_CHECK(only_known_keys(qwen3moe_keys));
            identity("Qwen3MoeForCausalLM", "qwen3_moe");
        } else {
            NIBBLE_CHECK(only_known_keys(std::array<const char*, 0>{}));
            const bool second = arch_ == "qwen2";
            identity(second ? "Qwen2ForCausalLM" : "Qwen3ForCausalLM", arch_);
        }
        c_["hidden_act"] = "silu";
        NIBBLE_CHECK(sizes());
        NIBBLE_CHECK(rope(10000));
        if (arch_ == "qwen2") {  // qwen2's attention derives the head size from these two, and always has biases
            const int64_t hidden = c_["hidden_size"], heads = c_["num_attention_heads"], head_dim = c_["head_dim"];
            if (head_dim * heads != hidden) return fail("qwen2 with heads of {} is not expressible", head_dim);
        } else {
            c_["attention_bias"] = any_layer_has("attn_q.bias");
        }
        c_["use_sliding_window"] = false;
        c_["sliding_window"] = nullptr;
        if (!moe) return Ok{};
        NIBBLE_CHECK(gating_is(1, "softmax"));
        NIBBLE_CHECK(integer("num_experts", "expert_count"));
        NIBBLE_CHECK(integer("num_experts_per_tok", "expert_used_count"));
        NIBBLE_CHECK(integer("moe_intermediate_size", "expert_feed_forward_length"));
        // the default is what llama.cpp computes
        NIBBLE_TRY(c_["norm_topk_prob"], m_.boolean_or(key("expert_weights_norm"), true));
        c_["decoder_sparse_step"] = 1;
        c_["mlp_only_layers"] = Json::array();
        for (int64_t l = 0, n = c_["num_hidden_layers"]; l < n; ++l)
            if (layer_has(l, "ffn_up.weight")) c_["mlp_only_layers"].push_back(l);
        c_["output_router_logits"] = false;
        return Ok{};
    }

    Status gemma3() {
        NIBBLE_CHECK(only_known_keys(gemma3_keys));
        identity("Gemma3ForCausalLM", "gemma3_text");
        c_["hidden_activation"] = "gelu_pytorch_tanh";
        NIBBLE_CHECK(sizes());
        NIBBLE_CHECK(rope(1e6));
        NIBBLE_TRY(const double local_base, finite_or(key("rope.freq_base_swa"), 10000));
        c_["rope_local_base_freq"] = shortest_decimal(local_base);
        c_["attention_bias"] = false;
        query_scale(62);
        const int64_t layers = c_["num_hidden_layers"];
        NIBBLE_TRY(const int64_t period, m_.integer_or(key("attention.sliding_window_pattern"), 6));
        if (period < 1) return fail("metadata key '{}' is {}", key("attention.sliding_window_pattern"), period);
        const bool slides = has("attention.sliding_window");
        if (slides) NIBBLE_CHECK(integer("sliding_window", "attention.sliding_window"));
        c_["sliding_window_pattern"] = slides ? period : 1;
        c_["layer_types"] = Json::array();
        for (int64_t l = 0; l < layers; ++l)
            c_["layer_types"].push_back(slides && (l + 1) % period != 0 ? "sliding_attention" : "full_attention");
        c_["attn_logit_softcapping"] = nullptr;
        c_["final_logit_softcapping"] = nullptr;
        if (has("final_logit_softcapping")) NIBBLE_CHECK(number("final_logit_softcapping", "final_logit_softcapping"));
        return Ok{};
    }

    // Returns the layer pattern from the tensors of each layer. M: Mamba-2, *: attention, E: experts, -: MLP.
    Result<std::string> nemotron_pattern(int64_t layers) const {
        std::string pattern;
        for (int64_t l = 0; l < layers; ++l) {
            if (layer_has(l, "ssm_in.weight"))
                pattern += 'M';
            else if (layer_has(l, "attn_q.weight"))
                pattern += '*';
            else if (layer_has(l, "ffn_up_exps.weight"))
                pattern += 'E';
            else if (layer_has(l, "ffn_up.weight"))
                pattern += '-';
            else
                return fail("layer {} holds neither Mamba, attention, experts nor an MLP", l);
        }
        return pattern;
    }

    // Returns the largest entry of a per-layer array; layers without such a block have 0.
    Result<int64_t> largest(std::string_view name) const {
        NIBBLE_TRY(const auto values, m_.integers(key(name)));
        return values.empty() ? 0 : *std::ranges::max_element(values);
    }

    Status nemotron_h() {
        NIBBLE_CHECK(only_known_keys(nemotron_h_keys));
        NIBBLE_TRY(const int64_t predicted, m_.integer_or(key("nextn_predict_layers"), 0));
        if (predicted != 0) return fail("the file holds {} multi-token-prediction layers: not supported", predicted);
        identity("NemotronHForCausalLM", "nemotron_h");
        NIBBLE_TRY(c_["hidden_size"], size("embedding_length"));
        NIBBLE_TRY(const int64_t layers, layer_count());
        c_["num_hidden_layers"] = layers;
        NIBBLE_TRY(const std::string pattern, nemotron_pattern(layers));
        c_["hybrid_override_pattern"] = pattern;
        NIBBLE_TRY(c_["num_attention_heads"], largest("attention.head_count"));
        NIBBLE_TRY(c_["num_key_value_heads"], largest("attention.head_count_kv"));
        NIBBLE_TRY(c_["head_dim"], size("attention.key_length"));
        NIBBLE_TRY(c_["intermediate_size"], intermediate_size(layers));
        NIBBLE_CHECK(limits("layer_norm_epsilon"));
        c_["norm_eps"] = c_["layer_norm_epsilon"];
        NIBBLE_CHECK(mamba());
        if (pattern.find('E') != std::string::npos) NIBBLE_CHECK(nemotron_experts());
        c_["attention_bias"] = any_layer_has("attn_q.bias");
        c_["mlp_bias"] = any_layer_has("ffn_up.bias");
        c_["mlp_hidden_act"] = "relu2";
        c_["sliding_window"] = nullptr;
        c_["residual_in_fp32"] = false;
        return Ok{};
    }

    // Returns the width of a plain MLP layer. Without one the field is unused and gets the largest width of the
    // metadata.
    Result<int64_t> intermediate_size(int64_t layers) const {
        for (int64_t l = 0; l < layers; ++l)
            if (const GgufTensor* up = file_.find_tensor(fmt::format("blk.{}.ffn_up.weight", l))) return up->shape[0];
        return largest("feed_forward_length");
    }

    Status mamba() {
        NIBBLE_CHECK(integer("conv_kernel", "ssm.conv_kernel"));
        NIBBLE_CHECK(integer("ssm_state_size", "ssm.state_size"));
        NIBBLE_CHECK(integer("n_groups", "ssm.group_count"));
        NIBBLE_CHECK(integer("mamba_num_heads", "ssm.time_step_rank"));
        NIBBLE_TRY(const int64_t inner, m_.integer(key("ssm.inner_size")));
        const int64_t heads = c_["mamba_num_heads"], hidden = c_["hidden_size"];
        if (heads < 1 || inner % heads != 0) return fail("{} Mamba channels do not divide into {} heads", inner, heads);
        c_["mamba_head_dim"] = inner / heads;
        // not used together with heads x head_dim
        c_["expand"] = hidden > 0 && inner % hidden == 0 ? inner / hidden : 2;
        c_["mamba_hidden_act"] = "silu";
        c_["use_conv_bias"] = any_layer_has("ssm_conv1d.bias");
        c_["mamba_proj_bias"] = any_layer_has("ssm_in.bias");
        c_["use_bias"] = any_layer_has("ssm_in.bias");
        return Ok{};
    }

    Status nemotron_experts() {
        NIBBLE_CHECK(gating_is(2, "sigmoid"));
        NIBBLE_CHECK(integer("n_routed_experts", "expert_count"));
        NIBBLE_CHECK(integer("num_experts_per_tok", "expert_used_count"));
        NIBBLE_CHECK(integer("moe_intermediate_size", "expert_feed_forward_length"));
        NIBBLE_CHECK(integer("moe_shared_expert_intermediate_size", "expert_shared_feed_forward_length"));
        NIBBLE_CHECK(integer("n_shared_experts", "expert_shared_count"));
        NIBBLE_TRY(c_["norm_topk_prob"], m_.boolean(key("expert_weights_norm")));
        NIBBLE_CHECK(number("routed_scaling_factor", "expert_weights_scale"));
        NIBBLE_TRY(c_["n_group"], m_.integer_or(key("expert_group_count"), 1));
        NIBBLE_TRY(c_["topk_group"], m_.integer_or(key("expert_group_used_count"), 1));
        if (has("moe_latent_size")) NIBBLE_CHECK(integer("moe_latent_size", "moe_latent_size"));
        return Ok{};
    }

    const GgufFile& file_;
    const GgufMetadata& m_;
    GgufArchitecture row_;
    std::string arch_;
    Json c_ = Json::object();
};

}  // namespace

Result<int64_t> gguf_head_dim(const GgufMetadata& metadata, std::string_view architecture) {
    const auto key = [&](std::string_view name) { return fmt::format("{}.{}", architecture, name); };
    if (metadata.has(key("attention.key_length"))) {
        NIBBLE_TRY(const int64_t key_length, metadata.integer(key("attention.key_length")));
        NIBBLE_TRY(const int64_t value_length, metadata.integer_or(key("attention.value_length"), key_length));
        if (key_length < 1 || key_length > INT32_MAX || value_length != key_length)
            return fail("key heads of {} and value heads of {} are not supported", key_length, value_length);
        return key_length;
    }
    NIBBLE_TRY(const int64_t hidden, metadata.integer(key("embedding_length")));
    NIBBLE_TRY(const auto heads, metadata.integers(key("attention.head_count")));
    if (heads.empty() || heads[0] < 1 || hidden < 1 || hidden > INT32_MAX || hidden % heads[0] != 0)
        return fail("'{}' is {}, which does not divide into the heads", key("embedding_length"), hidden);
    return hidden / heads[0];
}

Result<Json> gguf_model_config(const GgufFile& file) { return ConfigBuilder(file).build(); }

bool has_own_head(const GgufFile& file) {
    const GgufTensor* head = file.find_tensor("output.weight");
    const GgufTensor* embedding = file.find_tensor("token_embd.weight");
    if (!head || !embedding) return head != nullptr;
    // An NVFP4 matrix has its scale in a separate tensor, so equal bytes do not prove a copy.
    return head->type == GgmlType::nvfp4 || head->type != embedding->type || head->shape != embedding->shape ||
           !std::ranges::equal(head->data, embedding->data);
}

Result<Json> gguf_generation_config(const GgufFile& file) {
    const GgufMetadata& m = file.metadata();
    Json config = Json::object();
    if (m.has("tokenizer.ggml.bos_token_id")) {
        NIBBLE_TRY(config["bos_token_id"], m.integer("tokenizer.ggml.bos_token_id"));
    }
    std::vector<int64_t> stops;
    const auto add_stop = [&](int64_t id) {
        if (!std::ranges::count(stops, id)) stops.push_back(id);
    };
    for (const char* key :
         {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"}) {
        if (!m.has(key)) continue;
        NIBBLE_TRY(const int64_t id, m.integer(key));
        add_stop(id);
    }
    // Converters often leave out the end-of-turn token. llama.cpp then recognizes it by its text; this does the same.
    if (!m.has("tokenizer.ggml.eot_token_id") && m.has("tokenizer.ggml.tokens")) {
        NIBBLE_TRY(const auto* tokens, m.strings("tokenizer.ggml.tokens"));
        static constexpr std::array<std::string_view, 4> ends{"<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>"};
        for (size_t id = 0; id < tokens->size(); ++id)
            if (std::ranges::count(ends, (*tokens)[id])) add_stop(static_cast<int64_t>(id));
    }
    if (stops.size() == 1)
        config["eos_token_id"] = stops[0];
    else if (!stops.empty())
        config["eos_token_id"] = stops;
    if (m.has("tokenizer.ggml.padding_token_id")) {
        NIBBLE_TRY(config["pad_token_id"], m.integer("tokenizer.ggml.padding_token_id"));
    }
    return config;
}

}  // namespace nibble
