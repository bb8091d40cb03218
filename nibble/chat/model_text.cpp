#include "chat/model_text.h"

#include "base/json_append.h"
#include "checkpoint/gguf_tokenizer.h"
#include "io/gguf.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;

// Returns bos_token and similar values, which tokenizer_config.json contains as a text or as {"content": text}.
Json special_tokens(const Json& config) {
    Json variables = Json::object();
    if (!config.is_object()) return variables;
    for (const auto& [name, value] : config.items()) {
        if (!name.ends_with("_token")) continue;
        if (value.is_string()) append_member(variables, name, value);
        if (value.is_object() && value.contains("content")) append_member(variables, name, value["content"]);
    }
    return variables;
}

Result<GgufTokenizer> read_gguf(const fs::path& path) {
    NIBBLE_TRY(const GgufFile file, GgufFile::open(path));
    NIBBLE_TRY(auto tokenizer, gguf_tokenizer(file.metadata()).within(path.string()));
    if (!tokenizer) return fail("{}: has no tokenizer", path.string());
    return *std::move(tokenizer);
}

bool is_gguf(const fs::path& path) { return path.extension() == ".gguf"; }

Result<ModelText> from_gguf(const fs::path& path) {
    NIBBLE_TRY(const auto parts, read_gguf(path));
    NIBBLE_TRY(auto tokenizer, Tokenizer::from_json(parts.tokenizer_json).within(path.string()));
    NIBBLE_TRY(const Json config, parse_json(parts.tokenizer_config_json).within(path.string()));
    NIBBLE_TRY(auto chat, ChatTemplate::from_tokenizer_config(config).within(path.string()));
    return ModelText{std::move(tokenizer), std::move(chat), config, special_tokens(config)};
}

Result<ModelText> from_folder(const fs::path& path) {
    NIBBLE_TRY(auto tokenizer, Tokenizer::from_folder(path));
    ModelText text{std::move(tokenizer), std::nullopt, Json::object(), Json::object()};
    const fs::path config_file = path / "tokenizer_config.json", template_file = path / "chat_template.jinja";
    if (fs::exists(config_file)) {
        NIBBLE_TRY(const Json config, read_json_file(config_file, {.python_constants = true}));
        NIBBLE_TRY(text.chat, ChatTemplate::from_tokenizer_config(config).within(config_file.string()));
        text.variables = special_tokens(config);
        text.config = config;
    }
    if (fs::exists(template_file)) {
        NIBBLE_TRY(auto chat, ChatTemplate::open(template_file));
        text.chat.emplace(std::move(chat));
    }
    return text;
}

}  // namespace

Result<ModelText> open_model_text(const fs::path& path) { return is_gguf(path) ? from_gguf(path) : from_folder(path); }

Result<Tokenizer> open_tokenizer(const fs::path& path) {
    if (!is_gguf(path)) return Tokenizer::from_folder(path);
    NIBBLE_TRY(const auto parts, read_gguf(path));
    return Tokenizer::from_json(parts.tokenizer_json).within(path.string());
}

}  // namespace nibble
