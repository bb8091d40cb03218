#include "checkpoint/gguf_config.h"
#include "checkpoint/gguf_header.h"
#include "checkpoint/gguf_json_fields.h"
#include "io/json_events.h"

#include <algorithm>
#include <cmath>

namespace nibble {
namespace {

using Fields = GgufJsonFields;

// Values of general.file_type (llama_ftype).
constexpr uint32_t ftype_f32 = 0, ftype_f16 = 1, ftype_bf16 = 32, ftype_mxfp4 = 38, ftype_nvfp4 = 39;
constexpr uint32_t quantization_version = 2;

uint32_t file_type(const GgufExportLayout& layout) {
    const auto any = [&](GgmlType type) {
        return std::ranges::any_of(layout.tensors, [&](const GgufTensorSpec& t) { return t.type == type; });
    };
    if (any(GgmlType::nvfp4)) return ftype_nvfp4;
    if (any(GgmlType::mxfp4)) return ftype_mxfp4;
    return any(GgmlType::bf16) ? ftype_bf16 : any(GgmlType::f16) ? ftype_f16 : ftype_f32;
}

class HyperParameters {
public:
    HyperParameters(const ExportSpec& spec, const ModelConfig& model, const GgufArchitecture& architecture,
                    const GgufExportLayout& layout, GgufHeader& out)
        : spec_(spec),
          model_(model),
          config_(spec.config),
          row_(architecture),
          arch_(architecture.name),
          layout_(layout),
          out_(out) {}

    Status add() {
        NIBBLE_CHECK(general());
        if (!row_.model_type.empty()) return by_row();
        if (arch_ == "llama") return llama();
        if (arch_ == "gemma3") return gemma3();
        if (arch_.starts_with("nemotron_h")) return nemotron_h();
        if (gated_delta()) return qwen_next();
        return full_attention();
    }

private:
    template <class T>
    void put(std::string_view key, T value) {
        out_.metadata.add(fmt::format("{}.{}", arch_, key), value);
    }
    Status integer(std::string_view key, const char* field) {
        NIBBLE_TRY(const uint32_t value, config_.integer(field));
        put(key, value);
        return Ok{};
    }
    Status number(std::string_view key, const char* field) {
        NIBBLE_TRY(const double value, config_.number(field));
        put(key, static_cast<float>(value));
        return Ok{};
    }

    Status general() {
        out_.metadata.add("general.architecture", arch_);
        out_.metadata.add("general.type", std::string("model"));
        NIBBLE_TRY(std::string name, config_.text_or("_name_or_path", ""));
        name = name.substr(name.find_last_of('/') + 1);
        out_.metadata.add("general.name", name.empty() ? spec_.out.stem().string() : name);
        const uint32_t type = file_type(layout_);
        out_.metadata.add("general.file_type", type);
        if (type == ftype_nvfp4 || type == ftype_mxfp4)
            out_.metadata.add("general.quantization_version", quantization_version);
        return Ok{};
    }

    // llama.cpp supports one activation function per architecture.
    Status activation_is(const char* field, std::string_view expected) const {
        NIBBLE_TRY(const std::string found, config_.text_or(field, expected));
        if (found == expected) return Ok{};
        return fail("config.json: '{}' is {}, but llama.cpp computes {} models with {}", field, show_name(found), arch_,
                    expected);
    }

    Status sizes() {
        NIBBLE_CHECK(integer("block_count", "num_hidden_layers"));
        NIBBLE_CHECK(integer("context_length", "max_position_embeddings"));
        NIBBLE_CHECK(integer("embedding_length", "hidden_size"));
        NIBBLE_CHECK(integer("attention.head_count", "num_attention_heads"));
        return integer("vocab_size", "vocab_size");
    }

    Result<uint32_t> head_dim() const {
        NIBBLE_TRY(const uint32_t hidden, config_.integer("hidden_size"));
        NIBBLE_TRY(const uint32_t heads, config_.integer("num_attention_heads"));
        if (heads == 0) return fail("config.json: 'num_attention_heads' is 0");
        return config_.integer_or("head_dim", hidden / heads);
    }

    // Adds the keys of all models except hybrid ones.
    Status transformer() {
        NIBBLE_TRY(const uint32_t width, config_.integer("intermediate_size"));
        return transformer(width);
    }
    Status transformer(uint32_t feed_forward) {
        NIBBLE_CHECK(sizes());
        put("feed_forward_length", feed_forward);
        NIBBLE_CHECK(integer("attention.head_count_kv",
                             config_.has("num_key_value_heads") ? "num_key_value_heads" : "num_attention_heads"));
        NIBBLE_CHECK(number("attention.layer_norm_rms_epsilon", "rms_norm_eps"));
        NIBBLE_TRY(const uint32_t width, head_dim());
        if (config_.has("head_dim") || arch_ != "llama") {
            put("attention.key_length", width);
            put("attention.value_length", width);
        }
        const auto* attention = gated_delta() ? first_of<AttentionConfig>() : nullptr;
        put("rope.dimension_count", attention ? static_cast<uint32_t>(attention->rope.dims) : width);
        return rope();
    }

    Status rope() {
        NIBBLE_TRY(const GgufRope rope, gguf_rope_of(spec_.config));
        if (rope.partial != 1 && !gated_delta() && !row_.partial)
            return fail("config.json: partial_rotary_factor {} has no counterpart in llama.cpp's {}", rope.partial,
                        arch_);
        put("rope.freq_base", static_cast<float>(rope.base));
        if (rope.local_base && arch_ == "gemma3") put("rope.freq_base_swa", static_cast<float>(*rope.local_base));
        if (rope.scaling.is_null() || rope.type == "llama3") return Ok{};  // Llama 3's scaling is stored as a tensor
        const Fields scaling(rope.scaling);
        if (rope.type != "linear" && rope.type != "yarn")
            return fail("config.json: rope scaling {} has no GGUF writer (linear, yarn and llama3 have)",
                        show_name(rope.type));
        put("rope.scaling.type", rope.type);
        NIBBLE_TRY(const double factor, scaling.number("factor"));
        put("rope.scaling.factor", static_cast<float>(factor));
        if (rope.type == "linear") return Ok{};
        for (const char* field : {"attention_factor", "mscale", "mscale_all_dim"})
            if (scaling.has(field) && !row_.yarn_mscale && !is_default_factor(scaling, field, factor))
                return fail("config.json: rope scaling with '{}' has no GGUF writer", field);
        if (row_.yarn_mscale) NIBBLE_CHECK(yarn_mscale(scaling));
        NIBBLE_TRY(const uint32_t length, scaling.integer("original_max_position_embeddings"));
        put("rope.scaling.original_context_length", length);
        for (const char* field : {"beta_fast", "beta_slow"}) {
            if (!scaling.has(field)) continue;
            NIBBLE_TRY(const double beta, scaling.number(field));
            put(fmt::format("rope.scaling.yarn_{}", field), static_cast<float>(beta));
        }
        return Ok{};
    }

    // Returns true if the field is the attention_factor that llama.cpp's yarn has without one.
    static bool is_default_factor(const Fields& scaling, std::string_view field, double factor) {
        const auto given = scaling.number_or("attention_factor", 0);
        return field == "attention_factor" && given.ok() && std::abs(*given - (0.1 * std::log(factor) + 1)) < 1e-6;
    }

    // llama.cpp's mistral3: mscale is 1, and the original length is the period of the queries' temperature.
    Status yarn_mscale(const Fields& scaling) {
        NIBBLE_TRY(const double mscale, scaling.number_or("mscale", 1));
        if (mscale != 1 || scaling.has("attention_factor"))
            return fail("config.json: rope scaling with an 'mscale' of {} or an 'attention_factor' has no GGUF writer",
                        mscale);
        NIBBLE_TRY(const double all_dim, scaling.number_or("mscale_all_dim", 0));
        put("rope.scaling.yarn_log_multiplier", static_cast<float>(all_dim));
        NIBBLE_TRY(const double beta, scaling.number_or("llama_4_scaling_beta", 0));
        put("attention.temperature_scale", static_cast<float>(beta));
        return Ok{};
    }

    template <class T>
    const T* first_of() const {
        for (const BlockConfig& b : model_.blocks)
            if (const T* mixer = std::get_if<T>(&b.mixer)) return mixer;
        return nullptr;
    }
    bool gated_delta() const { return first_of<GatedDeltaConfig>() != nullptr; }

    bool slides() const {
        return std::ranges::any_of(model_.blocks, [](const BlockConfig& b) {
            const auto* a = std::get_if<AttentionConfig>(&b.mixer);
            return a && a->window > 0;
        });
    }
    bool has_experts() const {
        return std::ranges::any_of(model_.blocks,
                                   [](const BlockConfig& b) { return std::holds_alternative<MoeConfig>(b.mixer); });
    }

    Status llama() {
        NIBBLE_CHECK(activation_is("hidden_act", "silu"));
        NIBBLE_CHECK(transformer());
        if (slides() && has_experts()) return fail("config.json: Mixtral with a sliding window has no GGUF writer");
        if (slides()) NIBBLE_CHECK(integer("attention.sliding_window", "sliding_window"));
        if (!has_experts()) return Ok{};
        NIBBLE_CHECK(integer("expert_count", "num_local_experts"));
        return integer("expert_used_count", "num_experts_per_tok");
    }

    // Returns the attention of every layer.
    std::vector<const AttentionConfig*> attentions() const {
        std::vector<const AttentionConfig*> found;
        for (const BlockConfig& b : model_.blocks) {
            if (const auto* a = std::get_if<AttentionConfig>(&b.mixer)) found.push_back(a);
            const auto* both = std::get_if<ParallelConfig>(&b.mixer);
            for (size_t i = 0; both && i < both->branches.size(); ++i)
                if (const auto* a = std::get_if<AttentionConfig>(&both->branches[i].mixer)) found.push_back(a);
        }
        return found;
    }

    // Adds the keys of an architecture that its row describes.
    Status by_row() {
        NIBBLE_CHECK(activation_is(row_.activation_field, row_.activation));
        const auto layers = attentions();
        if (layers.empty()) return fail("config.json: the model has no attention");
        const AttentionConfig& a = *layers[0];
        NIBBLE_CHECK(row_allows(a));
        NIBBLE_CHECK(sizes());
        NIBBLE_CHECK(integer("feed_forward_length", "intermediate_size"));
        put("attention.head_count_kv", static_cast<uint32_t>(a.kv_heads));
        put("attention.key_length", static_cast<uint32_t>(a.head_dim));
        put("attention.value_length", static_cast<uint32_t>(a.head_dim));
        NIBBLE_CHECK(number(row_.layer_norm ? "attention.layer_norm_epsilon" : "attention.layer_norm_rms_epsilon",
                            row_.epsilon));
        int dims = 0;
        for (size_t l = 0; l < layers.size(); ++l) {
            const bool rotates = layers[l]->rope.dims > 0;
            dims = std::max(dims, layers[l]->rope.dims);
            if (row_.unrotated_period > 0 && rotates != ((l + 1) % row_.unrotated_period != 0))
                return fail(
                    "config.json: in llama.cpp's {}, every {} layers one has no rotary embedding, which layer "
                    "{} contradicts",
                    arch_, row_.unrotated_period, l);
        }
        put("rope.dimension_count", static_cast<uint32_t>(dims));
        NIBBLE_CHECK(rope());
        NIBBLE_CHECK(windows(layers));
        for (const GgufField& field : row_.fields) NIBBLE_CHECK(add_field(field));
        if (row_.gating > 0) put("expert_gating_func", row_.gating);
        if (row_.query_scale_layers > 0) NIBBLE_CHECK(gemma_query_scale(row_.query_scale_layers));
        return Ok{};
    }

    Status add_field(const GgufField& field) {
        switch (field.kind) {
            case GgufField::Kind::number:
                return number(field.key, field.field);
            case GgufField::Kind::boolean: {
                NIBBLE_TRY(const bool value, config_.boolean_or(field.field, false));
                put(field.key, value);
                return Ok{};
            }
            default:
                break;
        }
        NIBBLE_TRY(const uint32_t value, config_.integer(field.field));
        if (value == 0 && std::string_view(field.key) == "expert_shared_count")
            return fail("config.json: '{}' is 0, llama.cpp's {} needs shared experts", field.field, arch_);
        put(field.key, value);
        return Ok{};
    }

    // Refuses a model that the graph of this architecture cannot compute.
    Status row_allows(const AttentionConfig& a) const {
        const bool tied = model_.head == model_.embedding;
        if (tied && row_.head == GgufArchitecture::Head::own)
            return fail("config.json: 'tie_word_embeddings' is true, llama.cpp's {} has a head of its own", arch_);
        if (!tied && row_.head == GgufArchitecture::Head::tied)
            return fail("config.json: 'tie_word_embeddings' is false, llama.cpp's {} shares embedding and head", arch_);
        if (row_.square && int64_t{a.heads} * a.head_dim != model_.hidden)
            return fail("config.json: {} heads of {} are not 'hidden_size', {}, as llama.cpp's {} needs", a.heads,
                        a.head_dim, model_.hidden, arch_);
        for (const char* field : {"attention_bias", "mlp_bias", "use_bias", "use_qkv_bias"}) {
            const bool read = std::ranges::any_of(
                row_.biases, [&](const GgufBias& bias) { return std::string_view(bias.field) == field; });
            NIBBLE_TRY(const bool has, config_.boolean_or(field, false));
            if (has && !read) return fail("config.json: '{}' has no counterpart in llama.cpp's {}", field, arch_);
        }
        if (model_.head_bias) return fail("config.json: the bias of the head has no counterpart in GGUF");
        NIBBLE_TRY(const GgufRope rope, gguf_rope_of(spec_.config));
        if (rope.type == "llama3" && !row_.llama3_rope)
            return fail("config.json: rope scaling llama3 has no counterpart in llama.cpp's {}", arch_);
        if (rope.local_base && *rope.local_base != rope.base)
            return fail("config.json: layers with a window have rope_theta {}, others {}; llama.cpp's {} has one",
                        *rope.local_base, rope.base, arch_);
        return Ok{};
    }

    // A layer slides unless its number is a multiple of a period.
    Status windows(const std::vector<const AttentionConfig*>& layers) {
        if (!slides_any(layers)) {
            if (row_.window_period > 0 && row_.sliding_type.empty())
                return fail("config.json: no layer has a window, llama.cpp's {} has layers with one", arch_);
            return Ok{};
        }
        if (row_.window_period == 0)
            return fail("config.json: sliding windows have no counterpart in llama.cpp's {}", arch_);
        const auto full = std::ranges::find(layers, 0, &AttentionConfig::window);
        const auto leading = static_cast<uint32_t>(full - layers.begin());
        const uint32_t period = full == layers.end() ? std::max(row_.window_period, leading + 1) : leading + 1;
        for (size_t l = 0; l < layers.size(); ++l)
            if ((layers[l]->window > 0) != ((l + 1) % period != 0))
                return fail("config.json: 'layer_types' does not repeat every {} layers at layer {}", period, l);
        put("attention.sliding_window_pattern", period);
        return integer("attention.sliding_window", "sliding_window");
    }
    static bool slides_any(const std::vector<const AttentionConfig*>& layers) {
        return std::ranges::any_of(layers, [](const AttentionConfig* a) { return a->window > 0; });
    }

    // For qwen2, qwen3, qwen3moe and seed_oss: attention is full in every layer.
    Status full_attention() {
        NIBBLE_CHECK(activation_is("hidden_act", "silu"));
        if (slides()) return fail("config.json: sliding windows have no counterpart in llama.cpp's {}", arch_);
        NIBBLE_CHECK(transformer());
        if (arch_ != "qwen3moe") return Ok{};
        NIBBLE_TRY(const bool normalized, config_.boolean_or("norm_topk_prob", false));
        if (!normalized)
            return fail(
                "config.json: llama.cpp always normalizes the weights of the chosen experts, 'norm_topk_prob' is "
                "false");
        if (const std::string* dense = layer_with(".ffn_up.weight"))
            return fail("{}: llama.cpp's qwen3moe has experts in every layer", *dense);
        NIBBLE_CHECK(integer("expert_count", "num_local_experts"));
        NIBBLE_CHECK(integer("expert_used_count", "num_experts_per_tok"));
        return integer("expert_feed_forward_length", "moe_intermediate_size");
    }

    // qwen3next, qwen35, qwen35moe. The sections of rope are those of images; text has one position in all of them.
    Status qwen_next() {
        NIBBLE_CHECK(activation_is("hidden_act", "silu"));
        if (arch_ != "qwen35" && !config_.has("intermediate_size")) {
            // Experts in all layers: the width of other feed-forward networks is not used.
            NIBBLE_TRY(const uint32_t width, config_.integer("moe_intermediate_size"));
            NIBBLE_CHECK(transformer(width));
        } else {
            NIBBLE_CHECK(transformer());
        }
        const GatedDeltaConfig& delta = *first_of<GatedDeltaConfig>();
        if (delta.key_dim != delta.value_dim)
            return fail("config.json: 'linear_value_head_dim' is {}, llama.cpp's {} needs that of keys, {}",
                        delta.value_dim, arch_, delta.key_dim);
        put("ssm.conv_kernel", static_cast<uint32_t>(delta.conv));
        put("ssm.state_size", static_cast<uint32_t>(delta.key_dim));
        put("ssm.group_count", static_cast<uint32_t>(delta.key_heads));
        put("ssm.time_step_rank", static_cast<uint32_t>(delta.value_heads));
        put("ssm.inner_size", static_cast<uint32_t>(delta.inner()));
        NIBBLE_TRY(const uint32_t interval, attention_interval());
        put("full_attention_interval", interval);
        if (arch_ != "qwen3next") NIBBLE_CHECK(rope_sections());
        if (!has_experts()) return Ok{};
        if (const std::string* dense = layer_with(".ffn_up.weight"))
            return fail("{}: llama.cpp's {} has experts in every layer", *dense, arch_);
        NIBBLE_TRY(const bool normalized, config_.boolean_or("norm_topk_prob", true));
        if (!normalized)
            return fail(
                "config.json: llama.cpp always normalizes the weights of the chosen experts, 'norm_topk_prob' "
                "is false");
        NIBBLE_CHECK(integer("expert_count", "num_experts"));
        NIBBLE_CHECK(integer("expert_used_count", "num_experts_per_tok"));
        NIBBLE_CHECK(integer("expert_feed_forward_length", "moe_intermediate_size"));
        return integer("expert_shared_feed_forward_length", "shared_expert_intermediate_size");
    }

    // Every how many layers there is attention.
    Result<uint32_t> attention_interval() const {
        uint32_t interval = 0, layer = 0;
        std::vector<bool> attention;
        for (const BlockConfig& b : model_.blocks) {
            const bool is = std::holds_alternative<AttentionConfig>(b.mixer);
            if (!is && !std::holds_alternative<GatedDeltaConfig>(b.mixer)) continue;
            attention.push_back(is);
            ++layer;
            if (is && interval == 0) interval = layer;
        }
        if (interval == 0) interval = layer + 1;
        for (size_t l = 0; l < attention.size(); ++l)
            if (attention[l] != ((l + 1) % interval == 0))
                return fail("config.json: 'layer_types' does not have attention every {} layers at layer {}", interval,
                            l);
        return interval;
    }

    Status rope_sections() {
        std::vector<int32_t> sections{11, 11, 10, 0};  // values of the published models
        const Json* rope = &spec_.config["rope_parameters"];
        if (const auto given = rope->find("mrope_section"); given != rope->end() && !given->is_null()) {
            sections.clear();
            if (!given->is_array() || given->size() > 4)
                return fail("config.json: 'mrope_section' must be a list of at most four numbers");
            for (const Json& n : *given) {
                if (!n.is_number_integer() || n < 0 || n > INT32_MAX)
                    return fail("config.json: 'mrope_section' must be a list of at most four numbers");
                sections.push_back(n.get<int32_t>());
            }
            sections.resize(4);
        }
        out_.add_array(arch_ + ".rope.dimension_sections", std::move(sections));
        return Ok{};
    }

    Status gemma3() {
        NIBBLE_CHECK(activation_is("hidden_activation", "gelu_pytorch_tanh"));
        NIBBLE_CHECK(transformer());
        if (config_.has("attn_logit_softcapping"))
            return fail("config.json: 'attn_logit_softcapping' has no counterpart in llama.cpp's gemma3");
        if (config_.has("final_logit_softcapping"))
            NIBBLE_CHECK(number("final_logit_softcapping", "final_logit_softcapping"));
        NIBBLE_CHECK(gemma_query_scale(62));
        NIBBLE_TRY(const uint32_t pattern, gemma3_period());
        if (pattern == 1 || !config_.has("sliding_window")) return Ok{};
        put("attention.sliding_window_pattern", pattern);
        return integer("attention.sliding_window", "sliding_window");
    }

    // llama.cpp recognizes the 27B model by its number of layers; it scales queries by hidden/heads there, else by the
    // head size.
    Status gemma_query_scale(uint32_t layers_of_27b) const {
        NIBBLE_TRY(const uint32_t width, head_dim());
        NIBBLE_TRY(const uint32_t hidden, config_.integer("hidden_size"));
        NIBBLE_TRY(const uint32_t heads, config_.integer("num_attention_heads"));
        NIBBLE_TRY(const uint32_t layers, config_.integer("num_hidden_layers"));
        const uint32_t expected = layers == layers_of_27b ? hidden / heads : width;
        NIBBLE_TRY(const double scalar, config_.number_or("query_pre_attn_scalar", expected));
        if (scalar == expected) return Ok{};
        return fail("config.json: 'query_pre_attn_scalar' is {}, llama.cpp computes with {}", scalar, expected);
    }

    // Returns the period of full attention: from layer_types if it exists, else sliding_window_pattern.
    Result<uint32_t> gemma3_period() const {
        NIBBLE_TRY(uint32_t period, config_.integer("sliding_window_pattern"));
        if (!config_.has("layer_types")) return period;
        const Json& types = spec_.config["layer_types"];
        if (!types.is_array()) return fail("config.json: 'layer_types' must be a list");
        const auto first = std::ranges::find(types, Json("full_attention"));
        const auto leading = static_cast<uint32_t>(first - types.begin());
        period = first == types.end() ? std::max(period, leading + 1) : leading + 1;
        for (size_t l = 0; l < types.size(); ++l)
            if (types[l] != ((l + 1) % period == 0 ? "full_attention" : "sliding_attention"))
                return fail("config.json: 'layer_types' does not repeat every {} layers at layer {}", period, l);
        return period;
    }

    const std::string* layer_with(std::string_view suffix) const {
        for (const GgufTensorSpec& t : layout_.tensors)
            if (t.name.ends_with(suffix)) return &t.name;
        return nullptr;
    }
    bool layer_has(uint32_t layer, std::string_view suffix) const {
        const std::string name = fmt::format("blk.{}.{}", layer, suffix);
        return std::ranges::any_of(layout_.tensors, [&](const GgufTensorSpec& t) { return t.name == name; });
    }

    // llama.cpp derives the kinds of layers from these arrays: attention has key/value heads, feed-forward layers have
    // a width, Mamba layers have neither. (Its nemotron_h_moe assumes that every feed-forward layer has experts, as in
    // the published models.)
    Status nemotron_h() {
        NIBBLE_CHECK(activation_is("mlp_hidden_act", "relu2"));
        NIBBLE_CHECK(sizes());
        NIBBLE_TRY(const uint32_t layers, config_.integer("num_hidden_layers"));
        if (layers > layout_.tensors.size())
            return fail("config.json: {} layers, {} tensors", layers, layout_.tensors.size());
        NIBBLE_TRY(const uint32_t kv_heads, config_.integer("num_key_value_heads"));
        std::vector<int32_t> heads(layers), widths(layers);
        for (uint32_t l = 0; l < layers; ++l) {
            const bool moe = layer_has(l, "ffn_up_exps.weight");
            if (layer_has(l, "attn_q.weight")) heads[l] = static_cast<int32_t>(kv_heads);
            if (!moe && !layer_has(l, "ffn_up.weight")) continue;
            NIBBLE_TRY(const uint32_t width, config_.integer(moe ? "moe_intermediate_size" : "intermediate_size"));
            widths[l] = static_cast<int32_t>(width);
        }
        out_.add_array(arch_ + ".attention.head_count_kv", std::move(heads));
        out_.add_array(arch_ + ".feed_forward_length", std::move(widths));
        NIBBLE_TRY(const uint32_t width, config_.integer("head_dim"));
        put("attention.key_length", width);
        put("attention.value_length", width);
        NIBBLE_CHECK(number("attention.layer_norm_rms_epsilon", "layer_norm_epsilon"));
        NIBBLE_CHECK(number("attention.layer_norm_epsilon", "layer_norm_epsilon"));
        put("rope.scaling.finetuned", false);  // the model has no rotary embedding
        NIBBLE_CHECK(mamba());
        return arch_ == "nemotron_h" ? Status(Ok{}) : nemotron_experts();
    }

    Status mamba() {
        NIBBLE_CHECK(activation_is("mamba_hidden_act", "silu"));
        NIBBLE_CHECK(integer("ssm.conv_kernel", "conv_kernel"));
        NIBBLE_CHECK(integer("ssm.state_size", "ssm_state_size"));
        NIBBLE_CHECK(integer("ssm.group_count", "n_groups"));
        NIBBLE_CHECK(integer("ssm.time_step_rank", "mamba_num_heads"));
        NIBBLE_TRY(const uint32_t heads, config_.integer("mamba_num_heads"));
        NIBBLE_TRY(const uint32_t width, config_.integer("mamba_head_dim"));
        if (const uint64_t inner = uint64_t{heads} * width; inner <= INT32_MAX) {
            put("ssm.inner_size", static_cast<uint32_t>(inner));
            return Ok{};
        }
        return fail("config.json: {} Mamba heads of {} are too many", heads, width);
    }

    Status nemotron_experts() {
        NIBBLE_CHECK(integer("expert_count", "n_routed_experts"));
        NIBBLE_CHECK(integer("expert_used_count", "num_experts_per_tok"));
        NIBBLE_CHECK(integer("expert_feed_forward_length", "moe_intermediate_size"));
        NIBBLE_CHECK(integer("expert_shared_feed_forward_length", "moe_shared_expert_intermediate_size"));
        NIBBLE_CHECK(integer("expert_shared_count", "n_shared_experts"));
        NIBBLE_TRY(const bool normalized, config_.boolean_or("norm_topk_prob", true));
        put("expert_weights_norm", normalized);
        NIBBLE_CHECK(number("expert_weights_scale", "routed_scaling_factor"));
        for (const auto& [key, field] :
             {std::pair{"expert_group_count", "n_group"}, std::pair{"expert_group_used_count", "topk_group"},
              std::pair{"moe_latent_size", "moe_latent_size"}})
            if (config_.has(field)) NIBBLE_CHECK(integer(key, field));
        return Ok{};
    }

    const ExportSpec& spec_;
    const ModelConfig& model_;
    Fields config_;
    const GgufArchitecture& row_;
    std::string arch_;
    const GgufExportLayout& layout_;
    GgufHeader& out_;
};

}  // namespace

Status add_gguf_hyper_parameters(const ExportSpec& spec, const ModelConfig& model, const GgufArchitecture& architecture,
                                 const GgufExportLayout& layout, GgufHeader& out) {
    return HyperParameters(spec, model, architecture, layout, out).add();
}

Result<std::vector<float>> gguf_rope_divisors(const ExportSpec& spec) {
    NIBBLE_TRY(const GgufRope rope, gguf_rope_of(spec.config));
    if (rope.scaling.is_null() || rope.type != "llama3") return std::vector<float>();
    const Fields scaling(rope.scaling), config(spec.config);
    Llama3Rope llama3;
    NIBBLE_TRY(llama3.factor, scaling.number("factor"));
    NIBBLE_TRY(llama3.low_freq_factor, scaling.number("low_freq_factor"));
    NIBBLE_TRY(llama3.high_freq_factor, scaling.number("high_freq_factor"));
    NIBBLE_TRY(llama3.original_length, scaling.number("original_max_position_embeddings"));
    if (!(llama3.factor > 0 && llama3.low_freq_factor > 0 && llama3.high_freq_factor > llama3.low_freq_factor))
        return fail("config.json: rope_parameters has factors that are not positive and rising");
    NIBBLE_TRY(const uint32_t hidden, config.integer("hidden_size"));
    NIBBLE_TRY(const uint32_t heads, config.integer("num_attention_heads"));
    NIBBLE_TRY(const uint32_t width, config.integer_or("head_dim", hidden / std::max(heads, 1u)));
    if (width < 2 || width > 65536) return fail("config.json: the head dimension is {}, must be 2 to 65536", width);
    return llama3_rope_divisors(llama3, rope.base, width);
}

}  // namespace nibble
