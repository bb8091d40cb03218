#include "checkpoint/gguf_vocabulary.h"
#include "text/sentencepiece_model.h"

namespace nibble {
namespace {

using Model = SentencePieceModel;
using TokenType = GgufVocabulary::TokenType;

// GGUF and sentencepiece use the same numbers for the kinds of pieces.
static_assert(int(TokenType::byte) == int(Model::Type::byte) && int(TokenType::unused) == int(Model::Type::unused) &&
              int(TokenType::user_defined) == int(Model::Type::user_defined));

Status check(const Model& model) {
    if (model.algorithm != Model::Algorithm::bpe)
        return fail("model type {} has no GGUF writer (2, BPE, has)", static_cast<uint64_t>(model.algorithm));
    if (!model.byte_fallback) return fail("a BPE without byte fallback has no counterpart in llama.cpp");
    if (!model.charsmap.empty()) return fail("a precompiled normalization has no counterpart in llama.cpp");
    if (model.whitespace_as_suffix || !model.escape_whitespaces)
        return fail("its treatment of spaces has no counterpart in llama.cpp");
    return Ok{};
}

}  // namespace

Status write_sentencepiece(const ExportSpec& spec, std::string_view bytes, const Json& tokenizer_config,
                           int64_t vocabulary, GgufHeader& out) {
    NIBBLE_TRY(const Model model, parse_sentencepiece(bytes));
    NIBBLE_CHECK(check(model));
    GgufVocabulary v;
    v.resize(static_cast<size_t>(vocabulary));
    v.scores.resize(static_cast<size_t>(vocabulary));
    for (size_t id = 0; id < model.pieces.size(); ++id) {
        const Model::Piece& piece = model.pieces[id];
        NIBBLE_CHECK(v.place(piece.text, id, static_cast<TokenType>(piece.type)));
        v.scores[id] = piece.score;
    }
    v.pad();
    out.metadata.add("tokenizer.ggml.model", std::string("llama"));
    out.metadata.add("tokenizer.ggml.pre", std::string("default"));
    out.metadata.add("tokenizer.ggml.add_space_prefix", model.add_dummy_prefix);
    out.metadata.add("tokenizer.ggml.remove_extra_whitespaces", model.remove_extra_whitespaces);
    v.write(out);
    // The ids of the model take precedence over config.json. Hugging Face's LlamaTokenizer adds BOS unless a field
    // disables it.
    Json config = spec.config;
    if (model.bos >= 0) config["bos_token_id"] = static_cast<uint64_t>(model.bos);
    if (model.eos >= 0) config["eos_token_id"] = static_cast<uint64_t>(model.eos);
    v.write_special_tokens(config, tokenizer_config, out);
    out.metadata.add("tokenizer.ggml.add_bos_token", tokenizer_config.value("add_bos_token", Json(true)) == true);
    if (tokenizer_config.value("add_eos_token", Json()) == true) out.metadata.add("tokenizer.ggml.add_eos_token", true);
    return Ok{};
}

}  // namespace nibble
