#include "text/bpe.h"
#include "text/token_bound.h"
#include "text/tokenizer.h"
#include "text/tokenizer_data.h"
#include "text/tokenizer_json.h"
#include "text/unigram.h"

#include <algorithm>

namespace nibble {
namespace {

bool filled(const Json& object, const char* field) {
    const auto it = object.find(field);
    return it != object.end() && !it->is_null() && *it != "" && *it != 0.0 && *it != 0;
}

Json child(const Json& object, const char* field) {
    const auto it = object.find(field);
    return it == object.end() ? Json() : *it;
}

Result<std::unique_ptr<TokenModel>> make_bpe(const TokenizerJson& file, const Json& model, const TokenizerData& data) {
    for (const char* field : {"dropout", "continuing_subword_prefix", "end_of_word_suffix"})
        if (filled(model, field)) return fail("model BPE: '{}' is not supported", field);
    if (!file.scored.empty()) return fail("model BPE: 'vocab' is a list");
    BpeOptions options;
    options.byte_level = data.pre_tokenizer.byte_level();
    NIBBLE_TRY(options.byte_fallback, json_flag(model, "byte_fallback", false));
    NIBBLE_TRY(options.fuse_unknown, json_flag(model, "fuse_unk", false));
    NIBBLE_TRY(options.ignore_merges, json_flag(model, "ignore_merges", false));
    if (options.byte_level && options.byte_fallback)
        return fail("model BPE: byte_fallback with ByteLevel is not supported");
    if (filled(model, "unk_token")) {
        NIBBLE_TRY(const std::string unknown, json_string(model, "unk_token"));
        options.unknown = data.vocabulary.find(unknown);
        if (!options.unknown) return fail("model BPE: 'unk_token' is not a token");
    }
    NIBBLE_TRY(auto bpe, Bpe::from_merges(data.vocabulary, options, file.merges));
    return std::unique_ptr<TokenModel>(std::move(bpe));
}

Result<std::unique_ptr<TokenModel>> make_unigram(const TokenizerJson& file, const Json& model,
                                                 const TokenizerData& data) {
    if (!file.vocabulary.empty()) return fail("model Unigram: 'vocab' is an object");
    if (data.pre_tokenizer.byte_level()) return fail("model Unigram with ByteLevel is not supported");
    UnigramOptions options;
    NIBBLE_TRY(options.byte_fallback, json_flag(model, "byte_fallback", false));
    const Json unknown = child(model, "unk_id");
    if (!unknown.is_null()) {
        if (!unknown.is_number_unsigned() || unknown.get<uint64_t>() >= file.scored.size())
            return fail("model Unigram: 'unk_id' is not a token");
        options.unknown = unknown.get<uint32_t>();
    }
    std::vector<bool> usable(data.vocabulary.size());
    std::vector<double> scores(data.vocabulary.size());
    for (size_t id = 0; id < file.scored.size(); ++id) {
        usable[id] = true;
        scores[id] = file.scored[id].second;
    }
    NIBBLE_TRY(auto unigram, Unigram::from(data.vocabulary, options, usable, scores).within("model Unigram"));
    return std::unique_ptr<TokenModel>(std::move(unigram));
}

}  // namespace

Result<Tokenizer> Tokenizer::from_json(std::string_view text) {
    NIBBLE_TRY(const TokenizerJson file, parse_tokenizer_json(text));
    const Json model = child(file.document, "model");
    if (!model.is_object()) return fail("tokenizer.json: 'model' is not an object");
    auto data = std::make_shared<TokenizerData>();
    NIBBLE_TRY(data->normalizer, Normalizer::parse(child(file.document, "normalizer")));
    NIBBLE_TRY(data->pre_tokenizer, PreTokenizer::parse(child(file.document, "pre_tokenizer")));
    NIBBLE_TRY(data->post_processor, PostProcessor::parse(child(file.document, "post_processor")));
    NIBBLE_TRY(data->decoder, Decoder::parse(child(file.document, "decoder")));

    for (const auto& [token, id] : file.vocabulary) NIBBLE_CHECK(data->vocabulary.add(token, id).within("model.vocab"));
    for (size_t id = 0; id < file.scored.size(); ++id)
        NIBBLE_CHECK(data->vocabulary.add(file.scored[id].first, id).within("model.vocab"));
    Meter meter(MeterLimits::for_text(text.size()));
    NIBBLE_TRY(auto added, parse_added_tokens(child(file.document, "added_tokens")));
    for (const AddedToken& token : added)
        NIBBLE_CHECK(data->vocabulary.add(token.content, token.id).within("added_tokens"));
    NIBBLE_CHECK(data->decoder.check(data->vocabulary, meter));
    data->special.resize(data->vocabulary.size());
    for (AddedToken& token : added) {
        if (token.special) data->special[token.id] = true;
        std::string wanted = token.content;
        if (!token.normalized) {
            data->raw_added.add(wanted, std::move(token));
            continue;
        }
        NIBBLE_TRY(wanted, data->normalizer.apply(wanted, meter).within("added_tokens, normalized"));
        data->normalized_added.add(wanted, std::move(token));
    }
    auto ids = data->post_processor.before;
    ids.insert(ids.end(), data->post_processor.after.begin(), data->post_processor.after.end());
    for (const uint32_t id : ids)
        if (!data->vocabulary.has(id)) return fail("post_processor: id {} is not a token", id);

    // Files before 2021 have no type; a list of merges then means BPE.
    std::string type = model.contains("merges") ? "BPE" : "";
    if (model.contains("type")) {
        NIBBLE_TRY(type, json_string(model, "type").within("model"));
    }
    if (type == "BPE") {
        NIBBLE_TRY(data->model, make_bpe(file, model, *data));
    } else if (type == "Unigram") {
        NIBBLE_TRY(data->model, make_unigram(file, model, *data));
    } else {
        return fail("model {:?} is not supported (supported: BPE, Unigram)", type);
    }
    data->most_bytes_per_token = most_bytes_per_token(*data);
    return Tokenizer(std::move(data));
}

}  // namespace nibble
