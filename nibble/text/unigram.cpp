#include "text/unigram.h"

#include "text/unicode.h"

#include <algorithm>
#include <cmath>

namespace nibble {

struct Unigram::Scratch : ModelScratch {
    struct Best {
        double score = 0;
        size_t from = 0;
        uint32_t id = 0;
        bool reached = false, unknown = false;
    };
    struct Part {
        size_t begin, end;
        uint32_t id;
        bool unknown;
    };
    std::vector<Best> best;  // best segmentation of the text up to each byte
    std::vector<Part> parts;
};

Result<std::unique_ptr<Unigram>> Unigram::from(const Vocabulary& vocabulary, const UnigramOptions& options,
                                               const std::vector<bool>& usable, const std::vector<double>& scores) {
    std::unique_ptr<Unigram> out(new Unigram);
    out->options_ = options;
    out->scores_ = scores;
    double lowest = 0;
    bool first = true;
    for (uint32_t id = 0; id < vocabulary.size(); ++id) {
        if (!vocabulary.has(id)) continue;
        if (!std::isfinite(scores[id])) return fail("the score of token {} is not a finite number", id);
        if (const auto byte = byte_token(vocabulary.text(id)); byte && options.byte_fallback)
            out->byte_ids_[*byte] = id;
        if (!usable[id]) continue;
        if (vocabulary.text(id).empty()) return fail("token {} is empty", id);
        out->trie_.insert(vocabulary.text(id), id);
        lowest = first ? scores[id] : std::min(lowest, scores[id]);
        first = false;
    }
    out->unknown_score_ = lowest - 10;
    return out;
}

std::unique_ptr<ModelScratch> Unigram::make_scratch() const { return std::make_unique<Scratch>(); }

Status Unigram::encode(std::string_view piece, ModelScratch& scratch, Meter& meter, std::vector<uint32_t>& out) const {
    if (!meter.pay_bytes(static_cast<int64_t>((piece.size() + 1) * sizeof(Scratch::Best)))) return meter.error();
    auto& space = static_cast<Scratch&>(scratch);
    auto& best = space.best;  // plain references: clang 14 cannot capture structured bindings
    auto& parts = space.parts;
    best.assign(piece.size() + 1, {});
    best[0].reached = true;
    for (size_t at = 0, character; at < piece.size(); at += character) {
        character = utf8_step(piece, at).size;
        const double so_far = best[at].score;
        const auto offer = [&](size_t size, double score, uint32_t id, bool unknown) {
            auto& there = best[at + size];
            if (there.reached && so_far + score <= there.score) return;
            there = {so_far + score, at, id, true, unknown};
        };
        bool whole = false;
        const size_t looked = trie_.matches(piece.substr(at), [&](size_t size, uint32_t id) {
            offer(size, scores_[id], id, false);
            whole |= size == character;
        });
        if (!meter.pay_steps(Trie::steps(looked))) return meter.error();
        if (!whole) offer(character, unknown_score_, 0, true);
    }
    parts.clear();
    for (size_t end = piece.size(); end > 0; end = best[end].from) {
        const auto& b = best[end];
        if (b.unknown && !parts.empty() && parts.back().unknown)
            parts.back().begin = b.from;
        else
            parts.push_back({b.from, end, b.id, b.unknown});
    }
    std::reverse(parts.begin(), parts.end());
    for (const auto& part : parts) {
        if (!part.unknown) {
            out.push_back(part.id);
            continue;
        }
        const std::string_view text = piece.substr(part.begin, part.end - part.begin);
        const bool bytes = options_.byte_fallback && std::ranges::all_of(text, [&](char c) {
                               return byte_ids_[static_cast<uint8_t>(c)].has_value();
                           });
        if (bytes)
            for (const char c : text) out.push_back(*byte_ids_[static_cast<uint8_t>(c)]);
        else if (options_.unknown)
            out.push_back(*options_.unknown);
    }
    return Ok{};
}

}  // namespace nibble
