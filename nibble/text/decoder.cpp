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
    } else if (type == "ByteFallback") {
        byte_fallback_ = true;
    } else if (type == "Replace") {
        NIBBLE_TRY(auto replace, parse_replace(component).within(where));
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

Decoder::Piece Decoder::piece(std::string_view token, bool first) const {
    if (byte_level_) {
        if (auto bytes = alphabet_.bytes(token)) return {*std::move(bytes), true};
        return {std::string(token), true};
    }
    if (byte_fallback_)
        if (const auto byte = byte_token(token)) return {std::string(1, static_cast<char>(*byte)), true};
    std::string text(token);
    for (const auto& step : each_) {
        if (const auto* replace = std::get_if<ReplaceStep>(&step)) {
            // A regular expression that gives up on a token leaves it as it is.
            if (auto replaced = replace->apply(text); replaced.ok()) text = *std::move(replaced);
            continue;
        }
        const auto& meta = std::get<Metaspace>(step);
        const ReplaceStep replace{Pattern::literal(meta.mark), first && meta.drop_first ? "" : " "};
        if (auto replaced = replace.apply(text); replaced.ok()) text = *std::move(replaced);
    }
    return {std::move(text), false};
}

}  // namespace nibble
