#include "architecture/config_fields.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace nibble {
namespace {

// Training, bookkeeping, defaults of generation: fields that published configurations carry and inference ignores.
constexpr auto ignorable = std::to_array<std::string_view>(
    {"architectures", "model_type", "torch_dtype", "dtype", "transformers_version", "use_cache", "initializer_range",
     "attention_dropout", "hidden_dropout", "hidden_dropout_prob", "embd_pdrop", "resid_pdrop", "dropout",
     "classifier_dropout", "pad_token_id", "sep_token_id", "decoder_start_token_id", "pretraining_tp", "_name_or_path",
     "name_or_path", "_attn_implementation", "_attn_implementation_autoset", "attn_implementation", "_commit_hash",
     "output_router_logits", "output_attentions", "output_hidden_states", "return_dict", "router_aux_loss_coef",
     "router_jitter_noise", "aux_loss_alpha", "seq_aux", "tokenizer_class", "auto_map", "is_llama_config",
     "transformers.js_config", "unsloth_fixed", "unsloth_version", "finetuning_task", "id2label", "label2id",
     "problem_type", "task_specific_params", "torchscript", "use_bfloat16", "tf_legacy_loss", "pruned_heads",
     "chunk_size_feed_forward", "cache_implementation", "do_sample", "temperature", "top_k", "top_p", "min_length",
     "max_length", "num_beams", "repetition_penalty", "num_nextn_predict_layers", "quantization_config", "ep_size",
     // Fields of transformers' base class, written with every field by to_json_file.
     "is_encoder_decoder", "is_decoder", "add_cross_attention", "cross_attention_hidden_size", "tie_encoder_decoder",
     "tie_last_hidden_states", "num_labels", "prefix", "experts_implementation", "_experts_implementation",
     "early_stopping", "num_beam_groups", "diversity_penalty", "typical_p", "length_penalty", "no_repeat_ngram_size",
     "encoder_no_repeat_ngram_size", "bad_words_ids", "num_return_sequences", "output_scores",
     "return_dict_in_generate", "forced_bos_token_id", "forced_eos_token_id", "remove_invalid_values",
     "exponential_decay_length_penalty", "suppress_tokens", "begin_suppress_tokens"});

constexpr FieldPolicy policy{.unknown = "not known for this architecture, so it may change what the model computes",
                             .ignorable = ignorable,
                             .shows_values = true};

}  // namespace

ConfigFields::ConfigFields(const Json& object, std::string what) : Fields(object, std::move(what), policy) {}

Result<int64_t> ConfigFields::integer(std::string_view key, int64_t least) {
    const Json* value = find(key);
    if (!value) return missing(key);
    int64_t n = 0;
    if (!json_value(*value, n) || n > INT32_MAX || n < least)
        return bad(key, fmt::format("expected a whole number of at least {}", least));
    return n;
}

Result<int64_t> ConfigFields::integer_or(std::string_view key, int64_t otherwise, int64_t least) {
    return find(key) ? integer(key, least) : Result<int64_t>(otherwise);
}

Result<int64_t> ConfigFields::layers() {
    constexpr const char* key = "num_hidden_layers";
    NIBBLE_TRY(const int64_t n, integer(key));
    if (n > 4096) return bad(key, "more than 4096 layers are not supported");
    return n;
}

Result<double> ConfigFields::number(std::string_view key, double least, double most) {
    const Json* value = find(key);
    if (!value) return missing(key);
    const double number = value->is_number() ? value->get<double>() : NAN;
    if (!(number >= least && number <= most))
        return bad(key, fmt::format("expected a number in [{:g}, {:g}]", least, most));
    return number;
}

Result<double> ConfigFields::number_or(std::string_view key, double otherwise, double least, double most) {
    return find(key) ? number(key, least, most) : Result<double>(otherwise);
}

Result<std::vector<double>> ConfigFields::numbers(std::string_view key) {
    std::vector<double> list;
    const Json* value = find(key);
    if (!value) return list;
    const auto add = [&](const Json& item) {
        if (!item.is_number() || !std::isfinite(item.get<double>())) return false;
        list.push_back(item.get<double>());
        return true;
    };
    if (!value->is_array() || !std::ranges::all_of(*value, add)) return bad(key, "expected a list of numbers");
    return list;
}

Result<bool> ConfigFields::boolean_or(std::string_view key, bool otherwise) {
    NIBBLE_CHECK(read(key, otherwise));
    return otherwise;
}

Result<std::string> ConfigFields::string_or(std::string_view key, std::string_view otherwise) {
    std::string text(otherwise);
    NIBBLE_CHECK(read(key, text));
    return text;
}

Result<std::vector<std::string>> ConfigFields::strings(std::string_view key) {
    std::vector<std::string> list;
    NIBBLE_CHECK(read(key, list));
    return list;
}

Result<std::vector<int64_t>> ConfigFields::integers(std::string_view key) {
    std::vector<int64_t> list;
    const Json* value = find(key);
    if (!value) return list;
    const auto add = [&](const Json& item) {
        if (!item.is_number_integer() || item < 0 || item > INT32_MAX) return false;
        list.push_back(item.get<int64_t>());
        return true;
    };
    const bool good = value->is_array() ? std::ranges::all_of(*value, add) : add(*value);
    if (!good) return bad(key, "expected whole numbers");
    return list;
}

}  // namespace nibble
