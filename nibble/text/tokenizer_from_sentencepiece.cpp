#include "text/bpe.h"
#include "text/sentencepiece_model.h"
#include "text/token_bound.h"
#include "text/tokenizer.h"
#include "text/tokenizer_data.h"
#include "text/unigram.h"

#include <algorithm>

namespace nibble {
namespace {

using Model = SentencePieceModel;

Result<std::unique_ptr<TokenModel>> make_bpe(const Model& model, const TokenizerData& data,
                                             std::optional<uint32_t> unknown) {
    std::vector<bool> mergeable(model.pieces.size());
    std::vector<float> scores(model.pieces.size());
    for (size_t id = 0; id < model.pieces.size(); ++id) {
        const auto& piece = model.pieces[id];
        mergeable[id] = piece.type == Model::Type::normal || piece.type == Model::Type::unused;
        scores[id] = piece.score;
    }
    const BpeOptions options{.byte_fallback = model.byte_fallback, .fuse_unknown = true, .unknown = unknown};
    NIBBLE_TRY(auto bpe, Bpe::from_scores(data.vocabulary, options, mergeable, scores));
    for (uint32_t id = 0; id < model.pieces.size(); ++id)
        if (model.pieces[id].type == Model::Type::unused && bpe->makes(id))
            return fail("piece {} is unused but merges produce it, which is not supported", id);
    return std::unique_ptr<TokenModel>(std::move(bpe));
}

Result<std::unique_ptr<TokenModel>> make_unigram(const Model& model, const TokenizerData& data,
                                                 std::optional<uint32_t> unknown) {
    std::vector<bool> usable(model.pieces.size());
    std::vector<double> scores(model.pieces.size());
    for (size_t id = 0; id < model.pieces.size(); ++id) {
        usable[id] = model.pieces[id].type == Model::Type::normal;
        scores[id] = model.pieces[id].score;
    }
    const UnigramOptions options{.byte_fallback = model.byte_fallback, .unknown = unknown};
    NIBBLE_TRY(auto unigram, Unigram::from(data.vocabulary, options, usable, scores));
    return std::unique_ptr<TokenModel>(std::move(unigram));
}

std::string escaped(std::string_view text, bool escape) {
    std::string out;
    for (const char c : text) escape&& c == ' ' ? out += "\u2581" : out += c;
    return out;
}

}  // namespace

Result<Tokenizer> Tokenizer::from_sentencepiece(std::string_view bytes, bool add_bos, bool add_eos) {
    NIBBLE_TRY(const Model model, parse_sentencepiece(bytes));
    if (!model.charsmap.empty()) return fail("a precompiled normalization (charsmap) is not supported");
    if (model.whitespace_as_suffix) return fail("treat_whitespace_as_suffix is not supported");
    auto data = std::make_shared<TokenizerData>();
    std::optional<uint32_t> unknown;
    data->special.resize(model.pieces.size());
    for (uint32_t id = 0; id < model.pieces.size(); ++id) {
        const auto& piece = model.pieces[id];
        NIBBLE_CHECK(data->vocabulary.add(piece.text, id));
        const AddedToken token{
            .content = piece.text, .id = id, .normalized = false, .special = piece.type == Model::Type::control};
        data->special[id] = token.special || piece.type == Model::Type::unknown;
        if (piece.type == Model::Type::unknown) unknown = id;
        if (piece.type == Model::Type::control) data->raw_added.add(piece.text, token);
        // sentencepiece finds these in the normalized text and splits there.
        if (piece.type == Model::Type::user_defined)
            data->normalized_added.add(escaped(piece.text, model.escape_whitespaces), token);
    }
    data->normalizer =
        Normalizer::sentencepiece(model.remove_extra_whitespaces, model.add_dummy_prefix, model.escape_whitespaces);
    data->decoder = Decoder::sentencepiece(model.add_dummy_prefix, model.byte_fallback);
    const auto put = [&](bool wanted, int64_t id, std::vector<uint32_t>& side) -> Status {
        if (!wanted || id < 0) return Ok{};
        if (static_cast<size_t>(id) >= model.pieces.size()) return fail("the BOS or EOS id {} is not a piece", id);
        side.push_back(static_cast<uint32_t>(id));
        return Ok{};
    };
    NIBBLE_CHECK(put(add_bos, model.bos, data->post_processor.before));
    NIBBLE_CHECK(put(add_eos, model.eos, data->post_processor.after));
    if (model.algorithm == Model::Algorithm::bpe) {
        NIBBLE_TRY(data->model, make_bpe(model, *data, unknown));
    } else if (model.algorithm == Model::Algorithm::unigram) {
        NIBBLE_TRY(data->model, make_unigram(model, *data, unknown));
    } else {
        return fail("model type {} is not supported (supported: 1 unigram, 2 BPE)",
                    static_cast<uint64_t>(model.algorithm));
    }
    data->most_bytes_per_token = most_bytes_per_token(*data);
    return Tokenizer(std::move(data));
}

}  // namespace nibble
