#include "checkpoint/gguf_pretokenizers.h"

#include "io/gguf_value.h"

#include <array>
#include <optional>
#include <vector>

namespace nibble {
namespace {

struct Row {
    std::string_view ids;                      // separated by spaces
    std::array<std::string_view, 5> patterns;  // applied one after the other; each match becomes a piece
    bool digits = false;                       // true if each digit becomes a piece of its own
    bool gpt2 = false;                         // then GPT-2's own pattern is applied, inside ByteLevel
    bool nfc = false;
    bool ignore_merges = false;
    bool add_bos = false;
};

constexpr std::string_view llama3 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view qwen2 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view tekken =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view gpt4o =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view cjk = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+";
constexpr std::string_view cjk_kana = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+";
constexpr std::string_view deepseek3 = R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^)"
                                       "\r\n"
                                       R"(\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[)"
                                       "\r\n"
                                       R"(]*|\s*[)"
                                       "\r\n"
                                       R"(]+|\s+(?!\S)|\s+)";

constexpr std::array rows{
    Row{.ids = "gpt-2 default phi-2 gigachat jina-v2-es jina-v2-de a.x-4.0 mellum", .gpt2 = true},
    Row{.ids = "smollm starcoder refact codeshell", .digits = true, .gpt2 = true},
    Row{.ids = "command-r", .digits = true, .gpt2 = true, .nfc = true},
    Row{.ids = "llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2",
        .patterns = {llama3},
        .ignore_merges = true,
        .add_bos = true},
    Row{.ids = "dbrx smaug-bpe", .patterns = {llama3}},
    Row{.ids = "qwen2 deepseek-r1-qwen kormo f2llmv2", .patterns = {qwen2}, .nfc = true},
    Row{.ids = "tekken", .patterns = {tekken}, .ignore_merges = true, .add_bos = true},
    Row{.ids = "gpt-4o llama4", .patterns = {gpt4o}},
    Row{.ids = "deepseek-coder", .patterns = {"[\r\n]", R"(\s?\p{L}+)", R"(\s?\p{P}+)", cjk}, .digits = true},
    Row{.ids = "deepseek-v3", .patterns = {R"(\p{N}{1,3})", cjk_kana, deepseek3}},
};

Json split(std::string_view pattern) {
    return {{"type", "Split"}, {"pattern", {{"Regex", pattern}}}, {"behavior", "Isolated"}, {"invert", false}};
}

bool lists(std::string_view ids, std::string_view id) {
    while (!ids.empty()) {
        const size_t end = std::min(ids.find(' '), ids.size());
        if (ids.substr(0, end) == id) return true;
        ids.remove_prefix(std::min(end + 1, ids.size()));
    }
    return false;
}

// Returns a text that determines how a stage splits text; empty: a stage that no row has.
std::string stage_text(const Json& stage) {
    const auto is = [&](const char* field, const Json& value) { return stage.value(field, Json()) == value; };
    const Json type = stage.value("type", Json());
    if (type == "Digits" && is("individual_digits", true)) return "digits";
    if (type == "ByteLevel" && !is("add_prefix_space", true))
        return is("use_regex", false) ? "bytes" : "bytes, gpt2";  // the default of the field is true
    if (type != "Split" || !is("behavior", "Isolated") || is("invert", true)) return {};
    const Json pattern = stage.value("pattern", Json()).value("Regex", Json());
    return pattern.is_string() ? "split " + pattern.get<std::string>() : std::string();
}

// Returns the texts of the stages in order; no value: a stage is of an unknown kind.
std::optional<std::vector<std::string>> stage_texts(const Json& pre_tokenizer) {
    if (!pre_tokenizer.is_object()) return std::nullopt;
    std::vector<std::string> out;
    const Json one = Json::array({pre_tokenizer});
    const bool sequence = pre_tokenizer.value("type", Json()) == "Sequence";
    const Json stages = sequence ? pre_tokenizer.value("pretokenizers", Json::array()) : one;
    for (const Json& stage : stages) {
        out.push_back(stage.is_object() ? stage_text(stage) : std::string());
        if (out.back().empty()) return std::nullopt;
    }
    return out;
}

Json pre_tokenizer_of(const Row& row) {
    Json stages = Json::array();
    for (const std::string_view pattern : row.patterns)
        if (!pattern.empty()) stages.push_back(split(pattern));
    if (row.digits) stages.push_back({{"type", "Digits"}, {"individual_digits", true}});
    stages.push_back(
        {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", row.gpt2}});
    if (stages.size() == 1) return stages[0];
    return {{"type", "Sequence"}, {"pretokenizers", stages}};
}

}  // namespace

Result<GgufPreTokenizer> gguf_pre_tokenizer(std::string_view id) {
    std::string known;
    for (const Row& row : rows) {
        known += fmt::format("{}{}", known.empty() ? "" : " ", row.ids);
        if (!lists(row.ids, id)) continue;
        GgufPreTokenizer out;
        if (row.nfc) out.normalizer = {{"type", "NFC"}};
        out.pre_tokenizer = pre_tokenizer_of(row);
        out.ignore_merges = row.ignore_merges;
        out.add_bos = row.add_bos;
        return out;
    }
    return fail(
        "tokenizer.ggml.pre is {}, which is not known (known: {}): set it to one of these if that one splits text the "
        "same way",
        gguf_shown(id), known);
}

Result<std::string> gguf_pre_tokenizer_id(const Json& normalizer, const Json& pre_tokenizer, bool ignore_merges) {
    if (!normalizer.is_null() && !(normalizer.is_object() && normalizer.value("type", Json()) == "NFC"))
        return fail("tokenizer.json: a normalizer other than NFC has no counterpart in llama.cpp");
    if (const auto wanted = stage_texts(pre_tokenizer))
        for (const Row& row : rows)
            if (row.ignore_merges == ignore_merges && stage_texts(pre_tokenizer_of(row)) == wanted)
                return std::string(row.ids.substr(0, row.ids.find(' ')));
    return fail("tokenizer.json: llama.cpp has no name for its pre-tokenizer");
}

}  // namespace nibble
