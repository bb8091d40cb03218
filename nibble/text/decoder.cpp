#include "text/decoder.h"

#include "text/tokenizer_json.h"
#include "text/unicode.h"

namespace nibble {

Result<Decoder> Decoder::parse(const Json& component) {
    Decoder out;
    NIBBLE_CHECK(out.add(component, 0));
    return out;
}

Decoder Decoder::sentencepiece(bool strip, bool bytes) {
    Decoder out;
    out.each_.emplace_back(ReplaceStep{Pattern::literal("\u2581"), " "});
    out.byte_fallback_ = bytes;
    out.whole_runs_ = false;
    out.strip_left_ = strip ? 1 : 0;
    out.strip_text_ = " ";
    return out;
}

Status Decoder::add(const Json& component, int depth) {
    if (component.is_null()) return Ok{};
    NIBBLE_TRY(const std::string type, component_type(component, "decoder"));
    const std::string where = fmt::format("decoder {}", type);
    if (type == "Sequence") {
        const auto list = component.find("decoders");
        if (depth > 8 || list == component.end() || !list->is_array())
            return fail("{}: 'decoders' is not a list", where);
        for (const Json& step : *list) NIBBLE_CHECK(add(step, depth + 1));
        return Ok{};
    }
    if (strip_left_ || byte_level_) return fail("{} after Strip or ByteLevel is not supported", where);
    if (type == "ByteLevel") {
        if (!each_.empty() || byte_fallback_ || fused_) return fail("{} after other decoders is not supported", where);
        byte_level_ = true;
    } else if (type == "Fuse") {
        fused_ = true;
    } else if (type == "Strip") {
        const auto start = component.find("start"), stop = component.find("stop");
        if (!fused_) return fail("{} without Fuse before it is not supported", where);
        if (start == component.end() || !start->is_number_unsigned() || stop == component.end() || *stop != 0)
            return fail("{}: only 'start' may be other than 0", where);
        NIBBLE_TRY(strip_text_, json_string(component, "content").within(where));
        if (strip_text_.empty() || utf8_step(strip_text_, 0).size != strip_text_.size())
            return fail("{}: 'content' is not one character", where);
        strip_left_ = start->get<size_t>();
    } else if (fused_) {
        return fail("{} after Fuse is not supported", where);
    } else if (each_.size() >= 32) {
        return fail("{}: over 32 steps", where);
    } else if (type == "ByteFallback") {
        byte_fallback_ = true;
    } else if (type == "Replace") {
        NIBBLE_TRY(auto replace, parse_replace(component).within(where));
        may_grow_ |= replace.content.size() > replace.pattern.shortest();
        each_.emplace_back(std::move(replace));
    } else if (type == "Metaspace") {
        NIBBLE_TRY(auto mark, json_string(component, "replacement").within(where));
        NIBBLE_TRY(bool drop, json_flag(component, "add_prefix_space", true).within(where));
        if (component.contains("prepend_scheme")) drop = component["prepend_scheme"] != "never";
        if (mark.empty()) return fail("{}: 'replacement' is empty", where);
        each_.emplace_back(Metaspace{std::move(mark), drop});
    } else {
        return fail(
            "decoder '{}' is not supported (supported: ByteLevel, Replace, ByteFallback, Metaspace, Fuse, Strip, "
            "Sequence)",
            type);
    }
    return Ok{};
}

namespace {

// Limits for the replacements of one token. They depend on the token only, so a token that passed check() never fails
// later.
MeterLimits token_limits(size_t size) {
    const auto n = static_cast<int64_t>(size);
    return {.steps = 4096 + 64 * n, .bytes = 32 * (1024 + 16 * n)};
}

}  // namespace

Decoder::Piece Decoder::piece(std::string_view token, bool first) const {
    Meter meter(token_limits(token.size()));
    auto out = changed(token, first, meter);
    return out.ok() ? *std::move(out) : Piece{std::string(token), false};
}

Status Decoder::check(const Vocabulary& vocabulary, Meter& meter) const {
    if (!may_grow_) return Ok{};
    for (uint32_t id = 0; id < vocabulary.size(); ++id) {
        if (!vocabulary.has(id)) continue;
        const std::string& token = vocabulary.text(id);
        for (const bool first : {false, true}) {
            Meter own(token_limits(token.size()));
            const auto piece = changed(token, first, own);
            const std::string where = fmt::format("decoder: token {}", id);
            NIBBLE_CHECK(own.status().within(where));
            if (piece.ok() && piece->bytes.size() > 1024 + 16 * token.size())
                return fail("{} becomes {} bytes, more than 1024 and 16 times its own {}", where, piece->bytes.size(),
                            token.size());
            if (!piece.ok()) return Error(piece.error()).within(where);
            if (!meter.pay_steps(own.steps_used())) return meter.error().within("decoder");
        }
    }
    return Ok{};
}

Result<Decoder::Piece> Decoder::changed(std::string_view token, bool first, Meter& meter) const {
    if (byte_level_) {
        if (auto bytes = alphabet_.bytes(token)) return Piece{*std::move(bytes), true};
        return Piece{std::string(token), true};
    }
    if (byte_fallback_)
        if (const auto byte = byte_token(token)) return Piece{std::string(1, static_cast<char>(*byte)), true};
    std::string text(token);
    for (const auto& step : each_) {
        if (const auto* replace = std::get_if<ReplaceStep>(&step)) {
            NIBBLE_TRY(text, replace->apply(text, meter));
            continue;
        }
        const auto& meta = std::get<Metaspace>(step);
        const ReplaceStep replace{Pattern::literal(meta.mark), first && meta.drop_first ? "" : " "};
        NIBBLE_TRY(text, replace.apply(text, meter));
    }
    return Piece{std::move(text), false};
}

}  // namespace nibble
