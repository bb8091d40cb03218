#include "train/data_document.h"

#include "base/utf8.h"
#include "text/corpus.h"

namespace nibble {
namespace {

Result<TokenDocument> plain_document(std::string_view text, const DocumentText& how) {
    TokenDocument out;
    NIBBLE_TRY(out.ids, how.tokenizer->encode(text, {.add_special = true, .parse_special = false}));
    if (how.end_token && (out.ids.empty() || out.ids.back() != *how.end_token)) out.ids.push_back(*how.end_token);
    return out;
}

Json beginning_of(const Json& messages, size_t count) {
    Json out = Json::array();
    for (size_t i = 0; i < count; ++i) out.push_back(messages[i]);
    return out;
}

// Renders the first `count` messages of a conversation.
Result<Rendering> render_messages(const Json& line, size_t count, bool prompt, const DocumentText& how) {
    Json own = how.variables, data = Json::object();
    own["add_generation_prompt"] = prompt;
    data["messages"] = beginning_of(line["messages"], count);
    if (const auto tools = line.find("tools"); tools != line.end()) data["tools"] = *tools;
    return how.chat->render(own, data, how.now).within("chat template");
}

// Bytes of the whole rendering that the assistant is to learn: from the end of the prompt that asks for a message to
// the end of the message, without the white space behind it.
Result<TextRanges> learned_bytes(const Json& line, const std::string& whole, const DocumentText& how) {
    const Json& messages = line["messages"];
    TextRanges ranges;
    size_t last = messages.size();
    while (last > 0 && messages[last - 1]["role"] != "assistant") --last;
    for (size_t i = how.loss == LossOn::last && last > 0 ? last - 1 : 0; i < last; ++i) {
        if (messages[i]["role"] != "assistant") continue;
        const auto differs = [&](std::string_view what) {
            return fail(
                "the chat template renders {} message {} otherwise when the conversation goes on, so the loss "
                "has no place; --loss last takes the last message only, --loss all takes everything",
                what, i + 1);
        };
        NIBBLE_TRY(const Rendering before, render_messages(line, i, true, how));
        if (!whole.starts_with(before.text)) return differs("what comes before");
        size_t end = whole.size();
        if (i + 1 < messages.size()) {
            NIBBLE_TRY(const Rendering after, render_messages(line, i + 1, false, how));
            if (!whole.starts_with(after.text)) return differs("the assistant's");
            end = after.text.size();
        }
        while (end > before.text.size() && std::string_view(" \t\r\n").find(whole[end - 1]) != std::string_view::npos)
            --end;
        if (end > before.text.size()) ranges.push_back({before.text.size(), end});
    }
    return ranges;
}

// Moves `at` behind `piece`, and behind white space in front of it: control tokens on either side may take that off. So
// a token begins where its own text does, or an answer behind a control token that takes the line's end off would lose
// its first label.
bool step_over(std::string_view text, std::string_view piece, size_t& at) {
    size_t from = at;
    while (!text.substr(from).starts_with(piece)) {
        if (from >= text.size() || std::string_view(" \t\r\n").find(text[from]) == std::string_view::npos) return false;
        ++from;
    }
    at = from + piece.size();
    return true;
}

// Which tokens begin in one of the ranges.
Result<std::vector<bool>> tokens_in(const TextRanges& ranges, const std::vector<TokenId>& ids, std::string_view text,
                                    const Tokenizer& tokenizer) {
    StreamDecoder decoder(tokenizer);
    std::vector<bool> inside(ids.size());
    size_t range = 0, at = 0;
    for (size_t i = 0; i < ids.size(); ++i) {
        const std::string piece = decoder.push(ids[i]);
        if (!step_over(text, piece, at))
            return fail(
                "the tokenizer does not give the conversation's text back (byte {}), so the loss has no place; "
                "--loss all takes all tokens",
                at);
        const size_t begin = at - piece.size();
        while (range < ranges.size() && begin >= ranges[range].end) ++range;
        inside[i] = range < ranges.size() && begin >= ranges[range].begin;
    }
    if (!step_over(text, decoder.finish(), at) || text.find_first_not_of(" \t\r\n", at) != text.npos)
        return fail(
            "the tokenizer gives back {} of {} bytes of the conversation, so the loss has no place; --loss all "
            "takes all tokens",
            at, text.size());
    return inside;
}

Result<TokenDocument> conversation(const Json& line, const DocumentText& how) {
    if (!how.chat) return fail("'messages' need a chat template, and the tokenizer's folder has none");
    NIBBLE_CHECK(check_messages(line["messages"]));
    NIBBLE_TRY(const Rendering whole, render_messages(line, line["messages"].size(), false, how));
    TokenDocument out;
    NIBBLE_TRY(out.ids, how.tokenizer->encode(whole.text, {.data = &whole.data}));
    if (how.loss == LossOn::all) return out;
    NIBBLE_TRY(const TextRanges ranges, learned_bytes(line, whole.text, how));
    NIBBLE_TRY(out.learned, tokens_in(ranges, out.ids, whole.text, *how.tokenizer));
    return out;
}

}  // namespace

Result<TokenDocument> tokenize_document(const RawDocument& document, const DocumentText& how) {
    NIBBLE_CHECK(check_utf8(document.text()));
    if (!document.json) return plain_document(document.text(), how);
    NIBBLE_TRY(const Json line, parse_json(document.text()));
    if (!line.is_object()) return fail("expected an object with 'text' or 'messages'");
    if (const auto text = line.find("text"); text != line.end()) {
        if (!text->is_string()) return fail("'text' is not a string");
        if (line.contains("messages")) return fail("has both 'text' and 'messages'");
        return plain_document(text->get_ref<const std::string&>(), how);
    }
    if (!line.contains("messages")) return fail("has neither 'text' nor 'messages'");
    return conversation(line, how);
}

}  // namespace nibble
