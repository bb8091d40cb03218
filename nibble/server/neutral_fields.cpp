#include "server/neutral_fields.h"

#include <algorithm>
#include <array>

namespace nibble {
namespace {

struct NeutralField {
    std::string_view name;
    std::string_view values;  // a JSON list of neutral values; empty: any value is accepted, because the field is a
                              // hint or part of another one
};

constexpr NeutralField neutral_fields[]{
    // vLLM
    {"length_penalty", "[1]"},
    {"early_stopping", "[false]"},
    {"include_reasoning", "[true]"},
    {"guided_decoding_backend", ""},
    {"guided_whitespace_pattern", "[\"\"]"},
    {"structural_tag", "[\"\"]"},
    {"logits_processors", "[[]]"},
    {"mm_processor_kwargs", "[{}]"},
    {"media_io_kwargs", "[{}]"},
    {"kv_transfer_params", "[{}]"},
    {"ec_transfer_params", "[{}]"},
    {"vllm_xargs", "[{}]"},
    {"prompt_embeds", "[[]]"},
    {"data_parallel_rank", ""},
    {"return_prompt_text", "[false]"},
    {"repetition_detection", "[{}, false]"},
    {"suffix", "[\"\"]"},
    {"documents", "[[]]"},
    // SGLang
    {"separate_reasoning", "[true]"},
    {"stream_reasoning", "[true]"},
    {"no_stop_trim", "[false]"},
    {"stop_regex", "[\"\", []]"},
    {"lora_path", "[\"\"]"},
    {"session_params", "[{}]"},
    {"return_hidden_states", "[false]"},
    {"return_routed_experts", "[false]"},
    {"return_cached_tokens_details", "[false]"},
    {"return_meta_info", "[false]"},
    {"logprob_start_len", "[-1]"},
    {"min_new_tokens", "[0]"},
    {"custom_logit_processor", "[\"\"]"},
    {"custom_params", "[{}]"},
    {"bootstrap_host", "[\"\"]"},
    {"bootstrap_port", ""},
    {"bootstrap_room", ""},
    {"use_audio_in_video", "[false]"},
    {"log_metrics", ""},
    {"rid", ""},
    {"extra_key", "[\"\"]"},
    // llama.cpp
    {"n_predict", "[-1]"},
    {"n_keep", "[0, -1]"},
    {"n_indent", "[0]"},
    {"n_discard", "[0]"},
    {"n_probs", "[0]"},
    {"min_keep", "[0]"},
    {"n_cache_reuse", "[0]"},
    {"dynatemp_range", "[0]"},
    {"dynatemp_exponent", ""},
    {"typical_p", "[1]"},
    {"typ_p", "[1]"},
    {"tfs_z", "[1]"},
    {"top_n_sigma", "[-1, 0]"},
    {"xtc_probability", "[0]"},
    {"xtc_threshold", ""},
    {"repeat_penalty", "[1]"},
    {"repeat_last_n", ""},
    {"penalize_nl", "[false]"},
    {"dry_multiplier", "[0]"},
    {"dry_base", ""},
    {"dry_allowed_length", ""},
    {"dry_penalty_last_n", ""},
    {"dry_sequence_breakers", ""},
    {"mirostat", "[0]"},
    {"mirostat_tau", ""},
    {"mirostat_eta", ""},
    {"adaptive_target", "[-1]"},
    {"adaptive_decay", ""},
    {"grammar_lazy", "[false]"},
    {"grammar_triggers", "[[]]"},
    {"preserved_tokens", "[[]]"},
    {"post_sampling_probs", "[false]"},
    {"t_max_predict_ms", "[0, -1]"},
    {"return_tokens", "[false]"},
    {"return_progress", "[false]"},
    {"timings_per_token", "[false]"},
    {"response_fields", "[[]]"},
    {"samplers", "[[]]"},
    {"lora", "[[]]"},
    {"reasoning_format", "[\"auto\", \"deepseek\"]"},
    {"thinking_forced_open", "[false]"},
    {"parse_tool_calls", "[true]"},
    {"backend_sampling", "[false]"},
    {"verbose", "[false]"},
    // NIM and Dynamo
    {"use_raw_prompt", "[false]"},
    {"greed_sampling", "[false]"},
    {"annotations", "[[]]"},
};

// Fields of "nvext", and the names of the same fields on this server.
constexpr std::pair<std::string_view, std::string_view> nvext_fields[]{
    {"guided_json", "guided_json"},
    {"guided_regex", "guided_regex"},
    {"guided_choice", "guided_choice"},
    {"guided_grammar", "guided_grammar"},
    {"guided_whitespace_pattern", "guided_whitespace_pattern"},
    {"guided_decoding_backend", "guided_decoding_backend"},
    {"top_k", "top_k"},
    {"min_p", "min_p"},
    {"repetition_penalty", "repetition_penalty"},
    {"ignore_eos", "ignore_eos"},
    {"max_thinking_tokens", "thinking_token_budget"},
    {"use_raw_prompt", "use_raw_prompt"},
    {"greed_sampling", "greed_sampling"},
    {"annotations", "annotations"},
};

}  // namespace

Status read_neutral_fields(BodyFields& fields) {
    for (const NeutralField& field : neutral_fields) {
        const Json* value = fields.find(field.name);
        if (!value || field.values.empty()) continue;
        const Json neutral = Json::parse(field.values);
        if (std::ranges::find(neutral, *value) == neutral.end())
            return fields.bad(field.name, fmt::format("is supported only at its neutral value, {}", neutral[0].dump()));
    }
    return Ok{};
}

Status unfold_nvext(BodyFields& fields, Json& body) {
    const auto found = body.find("nvext");
    if (found == body.end() || found->is_null()) return Ok{};
    if (!found->is_object()) return fields.bad("nvext", "is not an object");
    const Json extension = *found;
    body.erase("nvext");
    for (const auto& [name, value] : extension.items()) {
        if (value.is_null()) continue;
        const auto known = std::ranges::find(nvext_fields, name, &std::pair<std::string_view, std::string_view>::first);
        if (known == std::end(nvext_fields)) return fields.bad("nvext", fmt::format("'{}' is not supported", name));
        Json& field = body[std::string(known->second)];
        if (!field.is_null() && field != value)
            return fields.bad("nvext", fmt::format("'{}' differs from the body's '{}'", name, known->second));
        field = value;
    }
    return Ok{};
}

}  // namespace nibble
