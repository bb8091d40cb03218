#include "text/tokenizer.h"

#include "base/mapped_file.h"
#include "base/model_place.h"
#include "text/substring.h"
#include "text/tokenizer_data.h"

#include <algorithm>

namespace nibble {
namespace {

// Encodes the pieces of the pre-tokenizer.
class ModelSink : public PieceSink {
public:
    ModelSink(const TokenModel& model, ModelScratch& scratch, Meter& meter, std::vector<TokenId>& out)
        : model_(model), scratch_(scratch), meter_(meter), out_(out) {}
    Status piece(std::string_view text, bool) override {
        const size_t before = out_.size();
        NIBBLE_CHECK(model_.encode(text, scratch_, meter_, out_));
        if (!meter_.allow_tokens(std::ssize(out_))) return meter_.error();
        // The unknown token is special too, but its text does not occur in the piece.
        for (size_t i = before; guarded_ && i < out_.size(); ++i) {
            if (!guarded_->special[out_[i]]) continue;
            if (find_text(text, guarded_->vocabulary.text(out_[i]), meter_) != text.npos)
                return fail("the tokenizer makes a control token of the text '{}'", text);
            if (!meter_.ok()) return meter_.error();
        }
        return Ok{};
    }
    // After this call, plain text that becomes a special token is an error.
    void guard(const TokenizerData& data) { guarded_ = &data; }

private:
    const TokenizerData* guarded_ = nullptr;
    const TokenModel& model_;
    ModelScratch& scratch_;
    Meter& meter_;
    std::vector<TokenId>& out_;
};

// Encodes text between two added tokens: normalizes it, finds added tokens in the normalized text, splits and encodes
// the rest.
Status encode_text(const TokenizerData& data, std::string_view text, bool start, bool parse_special,
                   const AddedTokenFinder::Refused& refused, Meter& meter, ModelSink& sink, std::vector<TokenId>& out) {
    std::string normalized;
    if (!data.normalizer.empty()) {
        NIBBLE_TRY(normalized, data.normalizer.apply(text, meter));
        text = normalized;
    }
    if (data.normalized_added.empty()) return data.pre_tokenizer.split(text, start, meter, sink);
    NIBBLE_TRY(const auto parts, data.normalized_added.split(text, parse_special, meter, refused));
    for (const auto& part : parts) {
        if (part.token)
            out.push_back(part.token->id);
        else
            NIBBLE_CHECK(data.pre_tokenizer.split(text.substr(part.begin, part.end - part.begin),
                                                  start && part.begin == 0, meter, sink));
    }
    return Ok{};
}

// Decides which control tokens stay text: those that contain bytes of data.
struct DataGuard {
    const TokenizerData& data;
    const EncodeOptions& options;

    bool control(TokenId id) const {
        return data.special[id] || std::binary_search(options.control.begin(), options.control.end(), id);
    }
    // Returns the first data range that ends after `at`.
    TextRanges::const_iterator first_after(size_t at) const {
        return std::partition_point(options.data->begin(), options.data->end(),
                                    [&](const TextRange& r) { return r.end <= at; });
    }
    // Returns the data ranges within [begin, end), relative to `begin`.
    TextRanges within(size_t begin, size_t end) const {
        TextRanges out;
        for (auto r = first_after(begin); r != options.data->end() && r->begin < end; ++r)
            out.push_back({std::max(r->begin, begin) - begin, std::min(r->end, end) - begin});
        return out;
    }
    AddedTokenFinder::Refused raw() const {
        return [this](size_t begin, size_t end, const AddedToken& token) {
            if (!control(token.id)) return false;
            const auto it = first_after(begin);
            return it != options.data->end() && it->begin < end;
        };
    }
    AddedTokenFinder::Refused all() const {
        return [this](size_t, size_t, const AddedToken& token) { return control(token.id); };
    }
};

// Encodes text between two raw added tokens when the normalized text may contain added tokens too; normalization loses
// positions. The text is encoded as a whole if all its control tokens were written by the template, else piece by
// piece.
Status encode_marked_text(const DataGuard& guard, std::string_view text, const TextRanges& ranges, bool start,
                          Meter& meter, ModelSink& sink, std::vector<TokenId>& out) {
    const TokenizerData& data = guard.data;
    const auto& tokens = data.normalized_added.tokens();
    const bool any = std::any_of(tokens.begin(), tokens.end(), [&](const auto& t) { return guard.control(t.id); });
    if (!any || ranges.empty()) return encode_text(data, text, start, true, {}, meter, sink, out);
    std::vector<std::pair<std::string_view, bool>> runs;  // (text, is data)
    size_t at = 0;
    for (const TextRange& r : ranges) {
        if (r.begin > at) runs.emplace_back(text.substr(at, r.begin - at), false);
        runs.emplace_back(text.substr(r.begin, r.end - r.begin), true);
        at = r.end;
    }
    if (at < text.size()) runs.emplace_back(text.substr(at), false);
    const auto controls = [&](std::string_view piece) -> Result<size_t> {
        std::string normalized(piece);
        if (!data.normalizer.empty()) {
            NIBBLE_TRY(normalized, data.normalizer.apply(piece, meter));
        }
        size_t n = 0;
        NIBBLE_TRY(const auto parts, data.normalized_added.split(normalized, true, meter));
        for (const auto& part : parts) n += part.token && guard.control(part.token->id);
        return n;
    };
    NIBBLE_TRY(const size_t whole, controls(text));
    size_t written = 0;
    for (const auto& [run, is_data] : runs) {
        if (is_data) continue;
        NIBBLE_TRY(const size_t n, controls(run));
        written += n;
    }
    if (whole == written) return encode_text(data, text, start, true, {}, meter, sink, out);
    for (const auto& [run, is_data] : runs)
        NIBBLE_CHECK(encode_text(data, run, start && run.data() == text.data(), true,
                                 is_data ? guard.all() : AddedTokenFinder::Refused{}, meter, sink, out));
    return Ok{};
}

Status encode_all(const TokenizerData& data, std::string_view text, const EncodeOptions& options, ModelScratch& scratch,
                  Meter& meter, std::vector<TokenId>& out) {
    ModelSink sink(*data.model, scratch, meter, out);
    const bool parse_special = options.parse_special;
    const DataGuard guard{data, options};
    if (options.data) sink.guard(data);
    AddedTokenFinder::Refused refused;
    if (options.data) refused = guard.raw();
    const auto between = [&](size_t begin, size_t end) -> Status {
        const std::string_view part = text.substr(begin, end - begin);
        if (options.data && parse_special)
            return encode_marked_text(guard, part, guard.within(begin, end), begin == 0, meter, sink, out);
        return encode_text(data, part, begin == 0, parse_special, {}, meter, sink, out);
    };
    if (data.raw_added.empty()) return between(0, text.size());
    NIBBLE_TRY(const auto parts, data.raw_added.split(text, parse_special, meter, refused));
    for (const auto& part : parts) {
        if (part.token)
            out.push_back(part.token->id);
        else
            NIBBLE_CHECK(between(part.begin, part.end));
    }
    return Ok{};
}

// Removes `what` from the front of `text` up to `count` times. Returns the remaining count, or 0 once other text
// follows.
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
    MeterLimits limits = MeterLimits::for_text(text.size());
    limits.tokens = options.most_tokens;
    Meter meter(limits);
    return encode(text, options, meter);
}

Result<std::vector<TokenId>> Tokenizer::encode(std::string_view text, const EncodeOptions& options,
                                               Meter& meter) const {
    if (!meter.pay_look(text.size())) return meter.error();
    std::string repaired;
    if (!utf8_valid(text)) {
        if (options.data) return fail("the text is not UTF-8");
        repaired = utf8_lossy(text);
        text = repaired;
    }
    std::vector<TokenId> out;
    if (const int64_t most = meter.limits().tokens, bytes = data_->most_bytes_per_token;
        bytes > 0 && static_cast<int64_t>(text.size()) / bytes > most) {
        out.resize(static_cast<size_t>(most) + 1);
        return out;
    }
    if (options.add_special) out = data_->post_processor.before;
    auto scratch = data_->borrow_scratch();
    Status status = encode_all(*data_, text, options, *scratch, meter, out);
    data_->give_back(std::move(scratch));
    if (status.ok() && options.add_special)
        out.insert(out.end(), data_->post_processor.after.begin(), data_->post_processor.after.end());
    if (meter.too_many_tokens() || (status.ok() && !meter.allow_tokens(std::ssize(out)))) {
        out.resize(static_cast<size_t>(meter.limits().tokens) + 1);
        return out;
    }
    NIBBLE_CHECK(std::move(status));
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

std::vector<TokenId> Tokenizer::added_tokens() const {
    std::vector<TokenId> out;
    for (const AddedTokenFinder* finder : {&data_->raw_added, &data_->normalized_added})
        for (const AddedToken& token : finder->tokens()) out.push_back(token.id);
    std::sort(out.begin(), out.end());
    return out;
}

Result<Tokenizer> Tokenizer::from_folder(const std::filesystem::path& path) {
    std::error_code error;
    if (!std::filesystem::exists(path, error)) return no_such_model(path);
    std::filesystem::path file = path;
    if (std::filesystem::is_directory(path, error)) {
        NIBBLE_CHECK(check_no_adapter(path));
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
