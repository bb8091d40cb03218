#include "data/document.h"

#include "base/utf8.h"
#include "data/rows.h"

#include <algorithm>

namespace nibble {
namespace {

void end_document(std::vector<TokenId>& ids, const DocumentText& how) {
    if (how.end_token && (ids.empty() || ids.back() != *how.end_token)) ids.push_back(*how.end_token);
}

Result<TokenDocument> plain_document(std::string_view text, const DocumentText& how) {
    TokenDocument out;
    NIBBLE_TRY(out.ids, how.tokenizer->encode(text, {.add_special = true, .parse_special = false}));
    end_document(out.ids, how);
    return out;
}

// Tokenizes prompt and completion separately, as in inference, where the prompt is given and the completion is
// generated. The end token belongs to the completion.
Result<TokenDocument> completion_document(const DataRow& row, const DocumentText& how) {
    TokenDocument out;
    const EncodeOptions plain{.parse_special = false};
    NIBBLE_TRY(const auto marked, how.tokenizer->encode(row.prompt, {.add_special = true, .parse_special = false}));
    NIBBLE_TRY(const auto prompt, how.tokenizer->encode(row.prompt, plain));
    NIBBLE_TRY(const auto completion, how.tokenizer->encode(row.text, plain));
    // Tokens that the tokenizer adds after a text go to the end.
    auto found = std::search(marked.begin(), marked.end(), prompt.begin(), prompt.end());
    if (found != marked.end()) found += static_cast<ptrdiff_t>(prompt.size());
    out.ids.assign(marked.begin(), found);
    const size_t from = out.ids.size();
    out.ids.insert(out.ids.end(), completion.begin(), completion.end());
    out.ids.insert(out.ids.end(), found, marked.end());
    end_document(out.ids, how);
    if (how.loss == LossOn::all) return out;
    out.learned.assign(out.ids.size(), true);
    std::fill_n(out.learned.begin(), from, false);
    return out;
}

Json beginning_of(const Json& messages, size_t count) {
    Json out = Json::array();
    for (size_t i = 0; i < count; ++i) out.push_back(messages[i]);
    return out;
}

// Renders the first `count` messages of a conversation.
Result<Rendering> render_messages(const DataRow& row, size_t count, bool prompt, const DocumentText& how) {
    Json own = how.variables, data = Json::object();
    own["add_generation_prompt"] = prompt;
    data["messages"] = beginning_of(row.messages, count);
    if (!row.tools.is_null()) data["tools"] = row.tools;
    return how.chat->render(own, data, how.now).within("chat template");
}

// Returns the byte ranges of the rendered conversation that are learned: from the end of each generation prompt to the
// end of the assistant's message, without trailing white space.
Result<TextRanges> learned_bytes(const DataRow& row, const std::string& whole, const DocumentText& how) {
    const Json& messages = row.messages;
    TextRanges ranges;
    size_t last = messages.size();
    while (last > 0 && messages[last - 1]["role"] != "assistant") --last;
    for (size_t i = how.loss == LossOn::last && last > 0 ? last - 1 : 0; i < last; ++i) {
        if (messages[i]["role"] != "assistant" || row.unlearned[i]) continue;
        const auto differs = [&](std::string_view what) {
            return fail(
                "the chat template renders {} message {} differently when more messages follow, so its tokens cannot "
                "be found; --loss last learns only the last message, --loss all learns all tokens",
                what, i + 1);
        };
        NIBBLE_TRY(const Rendering before, render_messages(row, i, true, how));
        if (!whole.starts_with(before.text)) return differs("what comes before");
        size_t end = whole.size();
        if (i + 1 < messages.size()) {
            NIBBLE_TRY(const Rendering after, render_messages(row, i + 1, false, how));
            if (!whole.starts_with(after.text)) return differs("the assistant's");
            end = after.text.size();
        }
        while (end > before.text.size() && std::string_view(" \t\r\n").find(whole[end - 1]) != std::string_view::npos)
            --end;
        if (end > before.text.size()) ranges.push_back({before.text.size(), end});
    }
    return ranges;
}

// Moves `at` past `piece`, and past white space before it, which control tokens on either side may absorb. So a token
// begins where its own text begins. Otherwise an answer after a control token that absorbs the line end would lose its
// first label.
bool step_over(std::string_view text, std::string_view piece, size_t& at) {
    size_t from = at;
    while (!text.substr(from).starts_with(piece)) {
        if (from >= text.size() || std::string_view(" \t\r\n").find(text[from]) == std::string_view::npos) return false;
        ++from;
    }
    at = from + piece.size();
    return true;
}

// Returns, for each token, whether it begins in one of the ranges.
Result<std::vector<bool>> tokens_in(const TextRanges& ranges, const std::vector<TokenId>& ids, std::string_view text,
                                    const Tokenizer& tokenizer) {
    StreamDecoder decoder(tokenizer);
    std::vector<bool> inside(ids.size());
    size_t range = 0, at = 0;
    for (size_t i = 0; i < ids.size(); ++i) {
        const std::string piece = decoder.push(ids[i]);
        if (!step_over(text, piece, at))
            return fail(
                "the tokenizer does not reproduce the conversation's text (byte {}), so the learned tokens cannot be "
                "found; --loss all learns all tokens",
                at);
        const size_t begin = at - piece.size();
        while (range < ranges.size() && begin >= ranges[range].end) ++range;
        inside[i] = range < ranges.size() && begin >= ranges[range].begin;
    }
    if (!step_over(text, decoder.finish(), at) || text.find_first_not_of(" \t\r\n", at) != text.npos)
        return fail(
            "the tokenizer reproduces only {} of {} bytes of the conversation, so the learned tokens cannot be found; "
            "--loss all learns all tokens",
            at, text.size());
    return inside;
}

Result<TokenDocument> conversation(const DataRow& row, const DocumentText& how) {
    if (!how.chat) return fail("'messages' need a chat template, and the tokenizer's folder has none");
    NIBBLE_CHECK(check_messages(row.messages));
    NIBBLE_TRY(const Rendering whole, render_messages(row, row.messages.size(), false, how));
    TokenDocument out;
    NIBBLE_TRY(out.ids, how.tokenizer->encode(whole.text, {.data = &whole.data}));
    if (how.loss == LossOn::all) return out;
    NIBBLE_TRY(const TextRanges ranges, learned_bytes(row, whole.text, how));
    NIBBLE_TRY(out.learned, tokens_in(ranges, out.ids, whole.text, *how.tokenizer));
    return out;
}

}  // namespace

Result<TokenDocument> tokenize_document(const RawDocument& document, const DocumentText& how) {
    NIBBLE_CHECK(check_utf8(document.text()));
    if (!document.row) return plain_document(document.text(), how);
    NIBBLE_TRY(const Json json, parse_json(document.text()));
    NIBBLE_TRY(const DataRow row, data_row(json));
    if (row.is_chat()) return conversation(row, how);
    return row.prompt.empty() ? plain_document(row.text, how) : completion_document(row, how);
}

}  // namespace nibble
