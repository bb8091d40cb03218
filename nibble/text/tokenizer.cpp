#include "text/tokenizer.h"

#include "base/mapped_file.h"
#include "text/tokenizer_data.h"

namespace nibble {
namespace {

// Encodes what the pre-tokenizer cuts off.
class ModelSink : public PieceSink {
public:
    ModelSink(const TokenModel& model, ModelScratch& scratch, std::vector<TokenId>& out)
        : model_(model), scratch_(scratch), out_(out) {}
    Status piece(std::string_view text, bool) override {
        model_.encode(text, scratch_, out_);
        return Ok{};
    }

private:
    const TokenModel& model_;
    ModelScratch& scratch_;
    std::vector<TokenId>& out_;
};

// Text between two added tokens: normalized, searched for added tokens that are normalized too, cut and encoded.
Status encode_text(const TokenizerData& data, std::string_view text, bool start, bool parse_special, ModelSink& sink,
                   std::vector<TokenId>& out) {
    std::string normalized;
    if (!data.normalizer.empty()) {
        NIBBLE_TRY(normalized, data.normalizer.apply(text));
        text = normalized;
    }
    if (data.normalized_added.empty()) return data.pre_tokenizer.split(text, start, sink);
    for (const auto& part : data.normalized_added.split(text, parse_special)) {
        if (part.token)
            out.push_back(part.token->id);
        else
            NIBBLE_CHECK(data.pre_tokenizer.split(text.substr(part.begin, part.end - part.begin),
                                                  start && part.begin == 0, sink));
    }
    return Ok{};
}

Status encode_all(const TokenizerData& data, std::string_view text, bool parse_special, ModelScratch& scratch,
                  std::vector<TokenId>& out) {
    ModelSink sink(*data.model, scratch, out);
    if (data.raw_added.empty()) return encode_text(data, text, true, parse_special, sink, out);
    for (const auto& part : data.raw_added.split(text, parse_special)) {
        if (part.token)
            out.push_back(part.token->id);
        else
            NIBBLE_CHECK(encode_text(data, text.substr(part.begin, part.end - part.begin), part.begin == 0,
                                     parse_special, sink, out));
    }
    return Ok{};
}

// Removes up to `count` times `what` from the front of `text`; what is left of the count, 0 once something else came.
size_t strip_front(std::string& text, std::string_view what, size_t count) {
    size_t at = 0;
    while (count > 0 && std::string_view(text).substr(at).starts_with(what)) {
        at += what.size();
        --count;
    }
    if (at < text.size()) count = 0;
    text.erase(0, at);
    return count;
}

}  // namespace

Result<std::vector<TokenId>> Tokenizer::encode(std::string_view text, const EncodeOptions& options) const {
    std::string repaired;
    if (!utf8_valid(text)) {
        repaired = utf8_lossy(text);
        text = repaired;
    }
    std::vector<TokenId> out;
    if (options.add_special) out = data_->post_processor.before;
    auto scratch = data_->borrow_scratch();
    Status status = encode_all(*data_, text, options.parse_special, *scratch, out);
    data_->give_back(std::move(scratch));
    NIBBLE_CHECK(std::move(status));
    if (options.add_special)
        out.insert(out.end(), data_->post_processor.after.begin(), data_->post_processor.after.end());
    return out;
}

std::string Tokenizer::decode(std::span<const TokenId> ids, bool skip_special) const {
    const Decoder& decoder = data_->decoder;
    std::string out, run;
    const auto end_run = [&] {
        const bool replace_all = decoder.whole_runs() && !decoder.byte_level() && !utf8_valid(run);
        for (size_t i = 0; replace_all && i < run.size(); ++i) out += "\uFFFD";
        if (!replace_all) out += utf8_lossy(run);
        run.clear();
    };
    bool first = true;
    for (const TokenId id : ids) {
        if (!data_->vocabulary.has(id) || (skip_special && data_->special[id])) continue;
        const auto piece = decoder.piece(data_->vocabulary.text(id), first);
        first = false;
        if (piece.partial) {
            run += piece.bytes;
            continue;
        }
        end_run();
        out += piece.bytes;
    }
    end_run();
    strip_front(out, decoder.strip_text(), decoder.strip_left());
    return out;
}

size_t Tokenizer::vocab_size() const { return data_->vocabulary.size(); }

std::optional<TokenId> Tokenizer::id_of(std::string_view token) const { return data_->vocabulary.find(token); }

std::optional<std::string_view> Tokenizer::token(TokenId id) const {
    if (!data_->vocabulary.has(id)) return std::nullopt;
    return data_->vocabulary.text(id);
}

std::string Tokenizer::token_bytes(TokenId id) const {
    return data_->vocabulary.has(id) ? data_->decoder.piece(data_->vocabulary.text(id), false).bytes : std::string();
}

bool Tokenizer::is_special(TokenId id) const { return data_->vocabulary.has(id) && data_->special[id]; }

Result<Tokenizer> Tokenizer::from_folder(const std::filesystem::path& path) {
    std::error_code error;
    std::filesystem::path file = path;
    if (std::filesystem::is_directory(path, error)) {
        file = path / "tokenizer.json";
        if (!std::filesystem::exists(file, error)) file = path / "tokenizer.model";
        if (!std::filesystem::exists(file, error))
            return fail("{}: has neither tokenizer.json nor tokenizer.model", path.string());
    }
    NIBBLE_TRY(const std::string text, read_text_file(file));
    if (file.extension() != ".model") return from_json(text).within(file.string());
    bool add_bos = true, add_eos = false;
    if (const auto config = file.parent_path() / "tokenizer_config.json"; std::filesystem::exists(config, error)) {
        NIBBLE_TRY(const Json json, read_json_file(config));
        if (const auto it = json.find("add_bos_token"); it != json.end() && it->is_boolean()) add_bos = it->get<bool>();
        if (const auto it = json.find("add_eos_token"); it != json.end() && it->is_boolean()) add_eos = it->get<bool>();
    }
    return from_sentencepiece(text, add_bos, add_eos).within(file.string());
}

StreamDecoder::StreamDecoder(Tokenizer tokenizer, bool skip_special)
    : tokenizer_(std::move(tokenizer)),
      skip_special_(skip_special),
      strip_left_(tokenizer_.data_->decoder.strip_left()) {}

std::string StreamDecoder::push(TokenId id) {
    const TokenizerData& data = *tokenizer_.data_;
    std::string out;
    if (!data.vocabulary.has(id) || (skip_special_ && data.special[id])) return out;
    const auto piece = data.decoder.piece(data.vocabulary.text(id), !started_);
    started_ = true;
    if (piece.partial) {
        pending_ += piece.bytes;
        utf8_drain(pending_, out);
    } else {
        out = utf8_lossy(pending_) + piece.bytes;
        pending_.clear();
    }
    if (strip_left_) strip_left_ = strip_front(out, data.decoder.strip_text(), strip_left_);
    return out;
}

std::string StreamDecoder::finish() {
    std::string out = utf8_lossy(pending_);
    pending_.clear();
    started_ = false;
    strip_left_ = tokenizer_.data_->decoder.strip_left();
    return out;
}

}  // namespace nibble
