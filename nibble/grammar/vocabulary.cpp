#include "grammar/vocabulary.h"

#include "base/utf8.h"
#include "grammar/expression.h"

#include <algorithm>

namespace nibble {
namespace {

// Returns the number of characters of a text that needs no escape in a JSON string, or 0 if it does.
size_t plain_characters(std::string_view text) {
    size_t n = 0;
    for (size_t at = 0; at < text.size(); ++n) {
        const Utf8Step step = utf8_step(text, at);
        if (!step.valid || step.code < 0x20 || step.code == '"' || step.code == '\\') return 0;
        at += step.size;
    }
    return n;
}

}  // namespace

TokenTree TokenTree::of(std::vector<std::pair<std::string, uint32_t>> texts) {
    TokenTree tree;
    std::sort(texts.begin(), texts.end());
    std::vector<uint32_t> path;  // nodes on the current path
    std::string_view before;
    for (const auto& [text, token] : texts) {
        size_t same = 0;
        while (same < before.size() && same < text.size() && before[same] == text[same]) ++same;
        for (; path.size() > same; path.pop_back()) tree.nodes[path.back()].next = uint32_t(tree.nodes.size());
        for (size_t i = same; i < text.size(); ++i) {
            path.push_back(uint32_t(tree.nodes.size()));
            const auto at = uint32_t(tree.tokens.size());
            tree.nodes.push_back({uint8_t(text[i]), uint32_t(i + 1), 0, at, at});
        }
        tree.tokens.push_back(token);
        tree.nodes[path.back()].last = uint32_t(tree.tokens.size());
        tree.depth = std::max(tree.depth, text.size());
        before = text;
    }
    for (; !path.empty(); path.pop_back()) tree.nodes[path.back()].next = uint32_t(tree.nodes.size());
    return tree;
}

Result<std::shared_ptr<const GrammarVocabulary>> GrammarVocabulary::of(const Tokenizer& tokenizer,
                                                                       std::span<const int32_t> end_tokens,
                                                                       size_t logits) {
    std::vector<std::string> texts(std::max(tokenizer.vocab_size(), logits));
    for (uint32_t id = 0; id < tokenizer.vocab_size(); ++id) {
        const auto token = tokenizer.token(id);
        if (!token || std::find(end_tokens.begin(), end_tokens.end(), int32_t(id)) != end_tokens.end()) continue;
        texts[id] = tokenizer.is_special(id) ? expression::control_text(*token) : tokenizer.token_bytes(id);
    }
    return of(std::move(texts));
}

Result<std::shared_ptr<const GrammarVocabulary>> GrammarVocabulary::of(std::vector<std::string> texts) {
    std::shared_ptr<GrammarVocabulary> out(new GrammarVocabulary());
    std::vector<std::pair<std::string, uint32_t>> plain, others;
    std::vector<std::pair<size_t, uint32_t>> by_length;
    size_t bytes = 0, most = 1;
    for (uint32_t id = 0; id < texts.size(); ++id) {
        if (texts[id].empty()) continue;
        bytes += texts[id].size();
        if (texts[id].size() > (1 << 20) || bytes > (size_t(1) << 28))
            return fail("the texts of the vocabulary are too long for grammars (token {})", id);
        const size_t n = plain_characters(texts[id]);
        (n ? plain : others).emplace_back(texts[id], id);
        if (n) by_length.emplace_back(n, id);
    }
    if (bytes == 0) return fail("the vocabulary has no texts");
    constexpr size_t longest = 32;  // few tokens are longer, and every length needs a mask
    for (const auto& [n, id] : by_length) {
        most = std::max(most, std::min(n, longest));
        out->longest_ = std::max(out->longest_, n);
    }
    out->plain_masks_.assign(most + 1, std::vector<uint32_t>((texts.size() + 31) / 32, 0));
    for (const auto& [n, id] : by_length) {
        if (n > most) out->long_plain_.emplace_back(n, id);
        for (size_t i = n; i <= most; ++i) out->plain_masks_[i][id / 32] |= 1u << (id % 32);
    }
    std::sort(out->long_plain_.begin(), out->long_plain_.end());
    out->plain_ = TokenTree::of(std::move(plain));
    out->others_ = TokenTree::of(std::move(others));
    out->texts_ = std::move(texts);
    return std::shared_ptr<const GrammarVocabulary>(std::move(out));
}

}  // namespace nibble
