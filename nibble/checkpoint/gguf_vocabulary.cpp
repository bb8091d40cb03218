#include "checkpoint/gguf_vocabulary.h"

#include "io/json_events.h"

#include <tuple>

namespace nibble {

void GgufVocabulary::resize(size_t size) {
    size_ = size;
    tokens.resize(size);
    types.resize(size, TokenType::unused);
}

Status GgufVocabulary::place(const std::string& text, uint64_t id, TokenType type) {
    if (id >= size_) return fail("token {} has id {}, but the embedding has {} rows", show_name(text), id, size_);
    if (types[id] != TokenType::unused && tokens[id] != text)
        return fail("tokens {} and {} both have id {}", show_name(tokens[id]), show_name(text), id);
    tokens[id] = text;
    types[id] = type;
    ids.emplace(text, id);
    return Ok{};
}

void GgufVocabulary::pad() {
    for (size_t id = 0; id < size_; ++id)
        if (types[id] == TokenType::unused && tokens[id].empty()) tokens[id] = fmt::format("[PAD{}]", id);
}

void GgufVocabulary::write(GgufHeader& out) {
    std::vector<int32_t> numbers;
    for (const TokenType t : types) numbers.push_back(static_cast<int32_t>(t));
    out.add_strings("tokenizer.ggml.tokens", std::move(tokens));
    if (!scores.empty()) out.add_array("tokenizer.ggml.scores", std::move(scores));
    out.add_array("tokenizer.ggml.token_type", std::move(numbers));
}

std::optional<std::string> named_token(const Json& tokenizer_config, const char* field) {
    Json value = tokenizer_config.value(field, Json());
    if (value.is_object()) value = value.value("content", Json());
    return value.is_string() ? std::optional(value.get<std::string>()) : std::nullopt;
}

void GgufVocabulary::write_special_tokens(const Json& config, const Json& tokenizer_config, GgufHeader& out) const {
    for (const auto& [name, key, id_field] :
         {std::tuple{"bos_token", "bos", "bos_token_id"}, std::tuple{"eos_token", "eos", "eos_token_id"},
          std::tuple{"unk_token", "unknown", ""}, std::tuple{"pad_token", "padding", "pad_token_id"},
          std::tuple{"sep_token", "seperator", ""}, std::tuple{"mask_token", "mask", ""}}) {
        std::optional<uint64_t> id;
        if (const auto text = named_token(tokenizer_config, name))
            if (const auto at = ids.find(*text); at != ids.end()) id = at->second;
        Json fallback = config.value(id_field, Json());
        if (fallback.is_array() && !fallback.empty()) fallback = Json(fallback[0]);
        if (!id && fallback.is_number_unsigned() && fallback.get<uint64_t>() < size_) id = fallback.get<uint64_t>();
        if (id) out.metadata.add(fmt::format("tokenizer.ggml.{}_token_id", key), static_cast<uint32_t>(*id));
    }
}

}  // namespace nibble
