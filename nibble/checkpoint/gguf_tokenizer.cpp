#include "checkpoint/gguf_tokenizer.h"

#include "base/utf8.h"
#include "checkpoint/gguf_pretokenizers.h"

#include <algorithm>
#include <unordered_map>

namespace nibble {
namespace {

enum class StoredTokenType : int64_t { normal = 1, unknown = 2, control = 3, user_defined = 4, unused = 5, byte = 6 };

// Returns the text as a JSON string. Precondition: UTF-8, which has been checked for all texts here.
std::string quoted(std::string_view text) { return nlohmann::json(text).dump(); }

struct Merge {
    std::string_view left, right;
};

class TokenizerBuilder {
public:
    explicit TokenizerBuilder(const GgufMetadata& metadata) : m_(metadata) {}

    Result<GgufTokenizer> build(std::string_view pre) {
        NIBBLE_CHECK(read_tokens());
        NIBBLE_TRY(const std::string_view model, m_.string("tokenizer.ggml.model"));
        if (model == "gpt2") {
            NIBBLE_CHECK(byte_level(pre));
        } else if (model == "llama") {
            NIBBLE_CHECK(sentence_piece());
        } else {
            return fail("tokenizer.ggml.model {} is not supported (supported: gpt2, llama)", gguf_shown(model));
        }
        GgufTokenizer out;
        NIBBLE_TRY(out.tokenizer_json, tokenizer_json());
        NIBBLE_TRY(out.tokenizer_config_json, tokenizer_config());
        return out;
    }

private:
    StoredTokenType type(size_t id) const {
        return types_.empty() ? StoredTokenType::normal : static_cast<StoredTokenType>(types_[id]);
    }

    // Converters pad the vocabulary to the size of the embedding with these; they are not tokens of the tokenizer.
    bool is_padding(size_t id) const {
        return type(id) == StoredTokenType::unused && (*tokens_)[id] == fmt::format("[PAD{}]", id);
    }

    Status read_tokens() {
        NIBBLE_TRY(tokens_, m_.strings("tokenizer.ggml.tokens"));
        if (m_.has("tokenizer.ggml.token_type")) {
            NIBBLE_TRY(types_, m_.integers("tokenizer.ggml.token_type"));
            if (types_.size() != tokens_->size())
                return fail("tokenizer.ggml.token_type has {} entries for {} tokens", types_.size(), tokens_->size());
        }
        ids_.reserve(tokens_->size());
        for (size_t id = 0; id < tokens_->size(); ++id) {
            const std::string_view token = (*tokens_)[id];
            if (!utf8_valid(token)) return fail("token {} is not UTF-8", id);
            if (is_padding(id)) continue;
            const auto [first, fresh] = ids_.emplace(token, id);
            if (!fresh) return fail("tokens {} and {} are the same: {}", first->second, id, gguf_shown(token));
        }
        return Ok{};
    }

    // Returns the text of the token whose id a metadata key contains; no value: the key is absent.
    Result<std::optional<std::string_view>> special(std::string_view name) const {
        const std::string key = fmt::format("tokenizer.ggml.{}_token_id", name);
        if (!m_.has(key)) return std::optional<std::string_view>();
        NIBBLE_TRY(const int64_t id, m_.integer(key));
        if (id < 0 || static_cast<size_t>(id) >= tokens_->size() || is_padding(id))
            return fail("metadata key '{}' is {}, but there are {} tokens", key, id, tokens_->size());
        return std::optional((*tokens_)[id]);
    }

    Status byte_level(std::string_view pre) {
        if (pre.empty()) {
            if (!m_.has("tokenizer.ggml.pre"))
                return fail(
                    "metadata has no key 'tokenizer.ggml.pre': add it with the name of the model's pre-tokenizer");
            NIBBLE_TRY(pre, m_.string("tokenizer.ggml.pre"));
        }
        NIBBLE_TRY(auto rules, gguf_pre_tokenizer(pre));
        normalizer_ = std::move(rules.normalizer);
        pre_tokenizer_ = std::move(rules.pre_tokenizer);
        decoder_ = {{"type", "ByteLevel"}, {"add_prefix_space", true}, {"trim_offsets", true}, {"use_regex", true}};
        post_processor_ = {
            {"type", "ByteLevel"}, {"add_prefix_space", true}, {"trim_offsets", false}, {"use_regex", true}};
        add_bos_ = rules.add_bos;
        model_["ignore_merges"] = rules.ignore_merges;

        NIBBLE_TRY(const auto* merges, m_.strings("tokenizer.ggml.merges"));
        merges_.reserve(merges->size());
        for (size_t i = 0; i < merges->size(); ++i) {
            const std::string_view merge = (*merges)[i];
            const size_t space = merge.find(' ', 1);  // a part is never empty, so the search begins at 1
            if (space == std::string_view::npos) return fail("tokenizer.ggml.merges[{}] is not two parts", i);
            merges_.push_back({merge.substr(0, space), merge.substr(space + 1)});
            for (const std::string_view part : {merges_.back().left, merges_.back().right})
                if (!ids_.contains(part)) return fail("tokenizer.ggml.merges[{}]: a part is not a token", i);
            if (!ids_.contains(fmt::format("{}{}", merges_.back().left, merges_.back().right)))
                return fail("tokenizer.ggml.merges[{}] does not make a token", i);
        }
        return Ok{};
    }

    // As in transformers' LlamaConverter: spaces become U+2581, one is prepended if the model requires it, and there is
    // no pre-tokenizer.
    Status sentence_piece() {
        constexpr const char* blank = "\u2581";
        NIBBLE_TRY(const bool prefix, m_.boolean_or("tokenizer.ggml.add_space_prefix", true));
        const Json replace = {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", blank}};
        Json decoders = {{{"type", "Replace"}, {"pattern", {{"String", blank}}}, {"content", " "}},
                         {{"type", "ByteFallback"}},
                         {{"type", "Fuse"}}};
        if (prefix) {
            normalizer_ = {{"type", "Sequence"}, {"normalizers", {{{"type", "Prepend"}, {"prepend", blank}}, replace}}};
            decoders.push_back({{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
        } else {
            normalizer_ = replace;
        }
        decoder_ = {{"type", "Sequence"}, {"decoders", decoders}};
        add_bos_ = true;
        size_t bytes = 0;
        for (size_t id = 0; id < tokens_->size(); ++id) bytes += type(id) == StoredTokenType::byte;
        if (bytes != 0 && bytes != 256) return fail("the vocabulary has {} of the 256 byte tokens", bytes);
        model_["fuse_unk"] = true;
        model_["byte_fallback"] = bytes == 256;
        NIBBLE_TRY(const auto unknown, special("unknown"));
        if (unknown) model_["unk_token"] = *unknown;
        return rebuild_merges();
    }

    // SentencePiece always joins the adjacent pair that forms the piece with the highest score. The equivalent list of
    // merges has every split of every piece into two pieces, by falling score; then by falling length of the left and
    // the right part in characters; then by rising ids (transformers' generate_merges).
    Status rebuild_merges() {
        NIBBLE_TRY(const GgufArray* scores, m_.array("tokenizer.ggml.scores", GgufValueType::f32));
        if (scores->count != tokens_->size())
            return fail("tokenizer.ggml.scores has {} entries for {} tokens", scores->count, tokens_->size());
        struct Candidate {
            float score;
            uint32_t left_length, right_length, left, right;
        };
        std::vector<Candidate> candidates, of_piece;
        std::vector<size_t> starts;
        for (size_t id = 0; id < tokens_->size(); ++id) {
            if (type(id) != StoredTokenType::normal && type(id) != StoredTokenType::unused) continue;
            const std::string_view piece = (*tokens_)[id];
            const float score = scores->at<float>(id);
            if (score != score) return fail("the score of token {} is not a number", id);
            // All its splits are looked up, which takes quadratic time in its length.
            if (piece.size() > 1024) return fail("token {} of {} bytes is too long", id, piece.size());
            starts.clear();
            for (size_t i = 0; i < piece.size(); i += utf8_step(piece, i).size) starts.push_back(i);
            of_piece.clear();
            for (size_t c = 1; c < starts.size(); ++c) {
                const auto left = ids_.find(piece.substr(0, starts[c])), right = ids_.find(piece.substr(starts[c]));
                if (left == ids_.end() || right == ids_.end()) continue;
                of_piece.push_back({score, static_cast<uint32_t>(c), static_cast<uint32_t>(starts.size() - c),
                                    static_cast<uint32_t>(left->second), static_cast<uint32_t>(right->second)});
            }
            std::ranges::sort(of_piece, [](const Candidate& a, const Candidate& b) {
                return std::pair(a.left, a.right) < std::pair(b.left, b.right);
            });
            candidates.insert(candidates.end(), of_piece.begin(), of_piece.end());
        }
        std::ranges::stable_sort(candidates, [](const Candidate& a, const Candidate& b) {
            return std::tuple(a.score, a.left_length, a.right_length) >
                   std::tuple(b.score, b.left_length, b.right_length);
        });
        merges_.reserve(candidates.size());
        for (const Candidate& c : candidates) merges_.push_back({(*tokens_)[c.left], (*tokens_)[c.right]});
        return Ok{};
    }

    Json added_tokens() const {
        Json added = Json::array();
        for (size_t id = 0; id < types_.size(); ++id) {
            const StoredTokenType t = type(id);
            if (t != StoredTokenType::control && t != StoredTokenType::user_defined && t != StoredTokenType::unknown)
                continue;
            added.push_back({{"id", id},
                             {"content", (*tokens_)[id]},
                             {"single_word", false},
                             {"lstrip", false},
                             {"rstrip", false},
                             {"normalized", false},
                             {"special", t != StoredTokenType::user_defined}});
        }
        return added;
    }

    // Adds the post-processor's template: the special tokens around a text.
    Status add_template() {
        NIBBLE_TRY(const bool bos, m_.boolean_or("tokenizer.ggml.add_bos_token", add_bos_));
        NIBBLE_TRY(const bool eos, m_.boolean_or("tokenizer.ggml.add_eos_token", false));
        add_bos_ = bos;
        add_eos_ = eos;
        if (!bos && !eos) return Ok{};
        Json single = Json::array(), pair = Json::array(), tokens = Json::object();
        for (const int type_id : {0, 1}) {
            const auto put = [&](const Json& item) {
                if (type_id == 0) single.push_back(item);
                pair.push_back(item);
            };
            const auto put_special = [&](std::string_view name) -> Status {
                NIBBLE_TRY(const auto token, special(name));
                if (!token) return fail("the tokenizer adds a {} token, but names none", name);
                put({{"SpecialToken", {{"id", *token}, {"type_id", type_id}}}});
                tokens[std::string(*token)] = {
                    {"id", *token}, {"ids", {ids_.at(*token)}}, {"tokens", Json::array({*token})}};
                return Ok{};
            };
            if (bos) NIBBLE_CHECK(put_special("bos"));
            put({{"Sequence", {{"id", type_id == 0 ? "A" : "B"}, {"type_id", type_id}}}});
            if (eos) NIBBLE_CHECK(put_special("eos"));
        }
        const Json processor = {
            {"type", "TemplateProcessing"}, {"single", single}, {"pair", pair}, {"special_tokens", tokens}};
        if (post_processor_.is_null())
            post_processor_ = processor;
        else
            post_processor_ = {{"type", "Sequence"}, {"processors", Json::array({post_processor_, processor})}};
        return Ok{};
    }

    // The vocabulary is written as text, because an ordered JSON object searches its 150,000 keys linearly.
    Result<std::string> tokenizer_json() {
        NIBBLE_CHECK(add_template());
        Json head = {{"version", "1.0"},
                     {"truncation", nullptr},
                     {"padding", nullptr},
                     {"added_tokens", added_tokens()},
                     {"normalizer", normalizer_},
                     {"pre_tokenizer", pre_tokenizer_},
                     {"post_processor", post_processor_},
                     {"decoder", decoder_}};
        Json model = {{"type", "BPE"},
                      {"dropout", nullptr},
                      {"unk_token", nullptr},
                      {"continuing_subword_prefix", nullptr},
                      {"end_of_word_suffix", nullptr},
                      {"fuse_unk", false},
                      {"byte_fallback", false},
                      {"ignore_merges", false}};
        for (const auto& [key, value] : model_.items()) model[key] = value;
        std::string out = head.dump();
        out.pop_back();
        std::string model_text = model.dump();
        model_text.pop_back();
        out += ",\"model\":" + model_text + ",\"vocab\":{";
        bool first = true;
        for (size_t id = 0; id < tokens_->size(); ++id) {
            if (is_padding(id)) continue;
            out += fmt::format("{}{}:{}", first ? "" : ",", quoted((*tokens_)[id]), id);
            first = false;
        }
        out += "},\"merges\":[";
        first = true;
        for (const auto& [left, right] : merges_) {
            out += fmt::format("{}[{},{}]", first ? "" : ",", quoted(left), quoted(right));
            first = false;
        }
        out += "]}}\n";
        return out;
    }

    Result<std::string> tokenizer_config() const {
        Json config = {{"tokenizer_class", "PreTrainedTokenizerFast"}};
        for (const auto& [field, name] : {std::pair{"bos_token", "bos"}, std::pair{"eos_token", "eos"},
                                          std::pair{"unk_token", "unknown"}, std::pair{"pad_token", "padding"}}) {
            NIBBLE_TRY(const auto token, special(name));
            if (token) config[field] = *token;
        }
        config["add_bos_token"] = add_bos_;
        config["add_eos_token"] = add_eos_;
        config["clean_up_tokenization_spaces"] = false;
        NIBBLE_TRY(Json chat, chat_template());
        if (!chat.is_null()) config["chat_template"] = std::move(chat);
        return config.dump(2) + "\n";
    }

    // Returns one template, or a default template with additional named ones.
    Result<Json> chat_template() const {
        constexpr const char* key = "tokenizer.chat_template";
        Json templates;
        const auto add = [&](std::string_view name, const std::string& full_key) -> Status {
            NIBBLE_TRY(const std::string_view text, m_.string(full_key));
            if (!utf8_valid(text)) return fail("metadata key {} is not UTF-8", gguf_shown(full_key));
            templates.push_back({{"name", name}, {"template", text}});
            return Ok{};
        };
        if (m_.has(key)) NIBBLE_CHECK(add("default", key));
        if (m_.has("tokenizer.chat_templates")) {
            NIBBLE_TRY(const auto* names, m_.strings("tokenizer.chat_templates"));
            for (const std::string_view name : *names) {
                if (!utf8_valid(name)) return fail("a name in 'tokenizer.chat_templates' is not UTF-8");
                NIBBLE_CHECK(add(name, fmt::format("{}.{}", key, name)));
            }
        }
        if (templates.size() == 1 && templates[0]["name"] == "default") return Json(templates[0]["template"]);
        return templates;
    }

    const GgufMetadata& m_;
    const std::vector<std::string_view>* tokens_ = nullptr;
    std::vector<int64_t> types_;  // empty: all tokens are normal
    std::unordered_map<std::string_view, size_t> ids_;
    std::vector<Merge> merges_;
    Json normalizer_, pre_tokenizer_, decoder_, post_processor_;
    Json model_ = Json::object();  // fields of "model" whose values differ from the defaults
    bool add_bos_ = false, add_eos_ = false;
};

}  // namespace

Result<std::optional<GgufTokenizer>> gguf_tokenizer(const GgufMetadata& metadata, std::string_view pre) {
    if (!metadata.has("tokenizer.ggml.model") && !metadata.has("tokenizer.ggml.tokens"))
        return std::optional<GgufTokenizer>();
    NIBBLE_TRY(const std::string_view model, metadata.string("tokenizer.ggml.model"));
    if (model == "none" || model == "no_vocab") return std::optional<GgufTokenizer>();
    NIBBLE_TRY(auto tokenizer, TokenizerBuilder(metadata).build(pre));
    return std::optional(std::move(tokenizer));
}

}  // namespace nibble
