#include "base/mapped_file.h"
#include "checkpoint/gguf_header.h"
#include "checkpoint/gguf_known_tokenizers.h"
#include "checkpoint/gguf_pretokenizers.h"
#include "checkpoint/gguf_vocabulary.h"
#include "checkpoint/tokenizer_file.h"
#include "io/json_events.h"

#include <algorithm>
#include <unordered_map>

namespace nibble {
namespace {

using TokenType = GgufVocabulary::TokenType;

constexpr std::string_view blank = "\u2581";       // SentencePiece's space
constexpr std::string_view byte_space = "\u0120";  // the space in byte-level vocabularies
constexpr float added_score = -1000, no_score = -1e9F;

// Returns the text of a side file; no value: there is none.
Result<std::optional<std::string>> side_file(const ExportSpec& spec, std::string_view name) {
    for (const Checkpoint::SideFile& file : spec.side_files) {
        if (file.name != name) continue;
        if (file.copy_from.empty()) return std::optional(file.content);
        NIBBLE_TRY(auto text, read_text_file(file.copy_from));
        return std::optional(std::move(text));
    }
    return std::optional<std::string>();
}

Result<Json> side_json(const ExportSpec& spec, std::string_view name) {
    NIBBLE_TRY(const auto text, side_file(spec, name));
    if (!text) return Json::object();
    NIBBLE_TRY(auto json, parse_json(*text).within(name));
    if (!json.is_object()) return fail("{}: is not a JSON object", name);
    return json;
}

// Converters treat these as control tokens whatever tokenizer.json contains, because models were published with wrong
// flags.
bool looks_special(std::string_view t) {
    const auto between = [&](std::string_view a, std::string_view b) { return t.starts_with(a) && t.ends_with(b); };
    return t == "<pad>" || t == "<mask>" || t == "<2mass>" || t == "[@BOS@]" || between("<|", "|>") ||
           between("<\uFF5C", "\uFF5C>") || between("<unused", ">");
}

bool is_byte_token(std::string_view t) {
    const auto hex = [](char c) { return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'F'); };
    return t.size() == 6 && t.starts_with("<0x") && hex(t[3]) && hex(t[4]) && t[5] == '>';
}

std::string replace_all(std::string_view text, std::string_view from, std::string_view to) {
    std::string out;
    size_t done = 0;
    for (size_t i = text.find(from); i != text.npos; i = text.find(from, done)) {
        out.append(text.substr(done, i - done)).append(to);
        done = i + from.size();
    }
    return out.append(text.substr(done));
}

class TokenizerWriter {
public:
    // `text`: the contents of tokenizer.json.
    TokenizerWriter(const ExportSpec& spec, std::string_view text, const TokenizerFile& file, const Json& config,
                    GgufHeader& out)
        : spec_(spec), text_(text), file_(file), config_(config), out_(out) {}

    Status write(int64_t vocabulary) {
        NIBBLE_CHECK(collect_tokens(static_cast<size_t>(vocabulary)));
        if (file_.model("type") != "BPE" && !file_.model("type").is_null())
            return fail("model {} has no GGUF writer (BPE has)", file_.model("type").dump());
        for (const char* field : {"continuing_subword_prefix", "end_of_word_suffix"})
            if (const Json value = file_.model(field); !value.is_null() && value != "")
                return fail("'{}' has no counterpart in llama.cpp", field);
        const bool pieces = file_.model("byte_fallback") == true;
        NIBBLE_CHECK(pieces ? sentence_piece() : byte_level());
        v_.write(out_);
        if (!pieces) write_merges();
        v_.write_special_tokens(spec_.config, config_, out_);
        return write_ends();
    }

private:
    Status collect_tokens(size_t size) {
        v_.resize(size);
        for (const auto& [text, id] : file_.vocabulary) {
            NIBBLE_CHECK(v_.place(text, id, TokenType::normal));
        }
        for (const Json& added : file_.document.value("added_tokens", Json::array())) {
            const Json content = added.is_object() ? added.value("content", Json()) : Json();
            const Json id = added.is_object() ? added.value("id", Json()) : Json();
            if (!content.is_string() || !id.is_number_unsigned()) return fail("an added token lacks 'content' or 'id'");
            const auto text = content.get<std::string>();
            const bool control = added.value("special", Json()) == true || looks_special(text);
            NIBBLE_CHECK(v_.place(text, id.get<uint64_t>(), control ? TokenType::control : TokenType::user_defined));
            if (!control) v_.tokens[id.get<uint64_t>()] = replace_all(v_.tokens[id.get<uint64_t>()], blank, " ");
            added_.push_back(id.get<uint64_t>());
        }
        v_.pad();
        return Ok{};
    }

    Status byte_level() {
        std::optional<std::string> id = known_gguf_tokenizer(text_);
        if (!id) {
            NIBBLE_TRY(id, gguf_pre_tokenizer_id(file_.document.value("normalizer", Json()),
                                                 file_.document.value("pre_tokenizer", Json()),
                                                 file_.model("ignore_merges") == true));
        }
        out_.metadata.add("tokenizer.ggml.model", std::string("gpt2"));
        out_.metadata.add("tokenizer.ggml.pre", *std::move(id));
        out_.metadata.add("tokenizer.ggml.add_space_prefix", false);
        return Ok{};
    }

    // Checks that the tokenizer replaces spaces by U+2581 and splits the text nowhere before the merges. Returns
    // whether it also prepends a space.
    Result<bool> space_prefix() const {
        const Json replace = {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", blank}};
        const Json prepend = {{"type", "Prepend"}, {"prepend", blank}};
        const Json both = {{"type", "Sequence"}, {"normalizers", {prepend, replace}}};
        const Json normalizer = file_.document.value("normalizer", Json());
        const Json pre = file_.document.value("pre_tokenizer", Json());
        // After the replacement there is no space left at which Split could split (Gemma).
        const bool cuts_nothing = pre.is_null() || (pre.is_object() && pre.value("type", Json()) == "Split" &&
                                                    pre.value("pattern", Json()) == Json{{"String", " "}});
        if (cuts_nothing && normalizer == replace) return false;
        if (cuts_nothing && normalizer == both) return true;
        if (normalizer.is_null() && pre.is_object() && pre.value("type", Json()) == "Metaspace" &&
            pre.value("replacement", Json()) == blank && pre.value("split", Json()) == false) {
            const Json scheme = pre.value("prepend_scheme", Json("always"));
            if (scheme == "never") return false;
            if (scheme == "first" || scheme == "always") return true;
        }
        return fail("its normalizer and pre-tokenizer are not SentencePiece's as llama.cpp computes them");
    }

    // llama.cpp always joins the adjacent pair that forms the piece with the highest score; here the score is minus the
    // index of the first merge that makes the piece. This is the same tokenizer only if all merges that make the same
    // piece are adjacent in the list.
    Status sentence_piece() {
        NIBBLE_TRY(const bool prefix, space_prefix());
        out_.metadata.add("tokenizer.ggml.model", std::string("llama"));
        out_.metadata.add("tokenizer.ggml.pre", std::string("default"));
        out_.metadata.add("tokenizer.ggml.add_space_prefix", prefix);
        v_.scores.assign(v_.tokens.size(), no_score);
        std::vector<size_t> first(v_.tokens.size(), file_.merges.size());
        size_t last = 0;
        for (size_t m = 0; m < file_.merges.size(); ++m) {
            const auto piece = v_.ids.find(file_.merges[m].first + file_.merges[m].second);
            if (piece == v_.ids.end()) return fail("merge {} does not make a token", m);
            size_t& rank = first[piece->second];
            rank = std::min(rank, m);
            if (rank < last) return fail("merge {}: its order cannot be expressed by scores", m);
            last = rank;
            v_.scores[piece->second] = -static_cast<float>(rank);
        }
        for (size_t id = 0; id < v_.tokens.size(); ++id)
            if (v_.types[id] == TokenType::normal && is_byte_token(v_.tokens[id])) v_.types[id] = TokenType::byte;
        for (const uint64_t id : added_) v_.scores[id] = added_score;
        const Json unknown = file_.model("unk_token");
        if (const auto id = unknown.is_string() ? v_.ids.find(unknown.get<std::string>()) : v_.ids.end();
            id != v_.ids.end())
            v_.types[id->second] = TokenType::unknown;
        return Ok{};
    }

    void write_merges() {
        std::vector<std::string> merges;
        merges.reserve(file_.merges.size());
        for (const auto& [left, right] : file_.merges) {
            merges.push_back(replace_all(left, " ", byte_space) + " " + replace_all(right, " ", byte_space));
        }
        out_.add_strings("tokenizer.ggml.merges", std::move(merges));
    }

    // Writes whether tokens are added before and after a text: according to the post-processor's template, else to the
    // config.
    Status write_ends() {
        bool bos = config_.value("add_bos_token", Json()) == true, eos = config_.value("add_eos_token", Json()) == true;
        const Json processor = file_.document.value("post_processor", Json::object());
        const Json one = Json::array({processor});
        const Json list = processor.is_object() ? processor.value("processors", one) : Json::array();
        for (const Json& stage : list) {
            const Json type = stage.is_object() ? stage.value("type", Json()) : Json();
            if (type == "ByteLevel" || type.is_null()) continue;
            if (type != "TemplateProcessing")
                return fail("post-processor {} has no counterpart in llama.cpp", type.dump());
            const Json single = stage.value("single", Json::array());
            // Only these two tokens can be added. A "Sequence" item stands for the text.
            const auto adds = [&](const Json& item, const char* name) -> Result<bool> {
                const Json token = item.is_object() ? item.value("SpecialToken", Json()) : Json();
                if (!token.is_object()) return false;
                if (const auto expected = named_token(config_, name);
                    expected && token.value("id", Json()) == *expected)
                    return true;
                return fail("the post-processor adds {}, which is not the {}", token.value("id", Json()).dump(), name);
            };
            bos = eos = false;
            if (single.is_array() && !single.empty()) {
                NIBBLE_TRY(bos, adds(single.front(), "bos_token"));
            }
            if (single.is_array() && single.size() > 1) {
                NIBBLE_TRY(eos, adds(single.back(), "eos_token"));
            }
        }
        out_.metadata.add("tokenizer.ggml.add_bos_token", bos);
        if (eos) out_.metadata.add("tokenizer.ggml.add_eos_token", true);
        return Ok{};
    }

    const ExportSpec& spec_;
    std::string_view text_;
    const TokenizerFile& file_;
    const Json& config_;
    GgufHeader& out_;
    GgufVocabulary v_;
    std::vector<uint64_t> added_;
};

// Adds one template, or a default template with additional named ones.
Status add_chat_template(const ExportSpec& spec, const Json& config, GgufHeader& out) {
    constexpr const char* key = "tokenizer.chat_template";
    Json chat = config.value("chat_template", Json());
    if (chat.is_null()) {
        NIBBLE_TRY(const auto text, side_file(spec, "chat_template.jinja"));
        if (text) chat = *text;
    }
    if (chat.is_string()) out.metadata.add(key, chat.get<std::string>());
    if (!chat.is_array()) return Ok{};
    std::vector<std::string> names;
    for (const Json& one : chat) {
        const Json name = one.is_object() ? one.value("name", Json()) : Json();
        const Json text = one.is_object() ? one.value("template", Json()) : Json();
        if (!name.is_string() || !text.is_string())
            return fail("tokenizer_config.json: a chat template lacks 'name' or 'template'");
        const bool is_default = name == "default";
        if (!is_default) names.push_back(name.get<std::string>());
        out.metadata.add(is_default ? key : fmt::format("{}.{}", key, name.get<std::string>()),
                         text.get<std::string>());
    }
    if (!names.empty()) out.add_strings("tokenizer.chat_templates", std::move(names));
    return Ok{};
}

// Describes a model without a tokenizer, for which config.json has only ids.
Status no_vocabulary(const ExportSpec& spec, GgufHeader& out) {
    for (const char* name : {"tekken.json", "vocab.json"}) {
        NIBBLE_TRY(const auto found, side_file(spec, name));
        if (found)
            return fail(
                "{}: GGUF needs tokenizer.json too (AutoTokenizer.from_pretrained(...).save_pretrained writes it)",
                name);
    }
    out.metadata.add("tokenizer.ggml.model", std::string("no_vocab"));
    for (const auto& [field, key] :
         {std::pair{"bos_token_id", "bos"}, std::pair{"eos_token_id", "eos"}, std::pair{"pad_token_id", "padding"}})
        if (const Json id = spec.config.value(field, Json());
            id.is_number_unsigned() && id.get<uint64_t>() <= INT32_MAX)
            out.metadata.add(fmt::format("tokenizer.ggml.{}_token_id", key), id.get<uint32_t>());
    return Ok{};
}

}  // namespace

Status add_gguf_tokenizer(const ExportSpec& spec, int64_t vocabulary, GgufHeader& out) {
    NIBBLE_TRY(const Json config, side_json(spec, "tokenizer_config.json"));
    NIBBLE_TRY(const auto text, side_file(spec, "tokenizer.json"));
    if (text) {
        NIBBLE_TRY(const auto file, parse_tokenizer_file(*text).within("tokenizer.json"));
        NIBBLE_CHECK(TokenizerWriter(spec, *text, file, config, out).write(vocabulary).within("tokenizer.json"));
    } else {
        NIBBLE_TRY(const auto model, side_file(spec, "tokenizer.model"));
        if (!model) return no_vocabulary(spec, out);
        NIBBLE_CHECK(write_sentencepiece(spec, *model, config, vocabulary, out).within("tokenizer.model"));
    }
    return add_chat_template(spec, config, out);
}

}  // namespace nibble
