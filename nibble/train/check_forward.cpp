#include "train/check_forward.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>

namespace nibble {
namespace {

struct Document {
    std::span<const int32_t> tokens, labels;
    size_t at = 0;  // position in the batch
};

std::vector<Document> documents_of(const TrainBatch& b) {
    std::vector<Document> list;
    for (size_t d = 0; d < b.documents.size(); ++d) {
        const auto from = static_cast<size_t>(b.documents[d]);
        const size_t to = d + 1 < b.documents.size() ? static_cast<size_t>(b.documents[d + 1]) : b.tokens.size();
        list.push_back(
            {std::span(b.tokens).subspan(from, to - from), std::span(b.labels).subspan(from, to - from), from});
    }
    return list;
}

class EnginePass {
public:
    EnginePass(const LanguageModel& model, std::span<float> out) : model_(model), out_(out) {}

    // Parts of documents that the model computes in one batch. A sequence keeps the earlier parts of its document.
    struct Piece {
        const Document* document;
        Sequence* sequence;
        size_t begin, count;
    };
    Status run(std::span<const Piece> pieces) {
        const int64_t vocab = model_.config().vocab;
        std::vector<Segment> segments;
        int64_t rows = 0;
        for (const Piece& p : pieces) {
            segments.push_back({.sequence = p.sequence, .tokens = p.document->tokens.subspan(p.begin, p.count)});
            rows += static_cast<int64_t>(p.count);
        }
        logits_.resize(static_cast<size_t>(rows * vocab));
        NIBBLE_CHECK(model_.forward(Batch(std::move(segments)), logits_));
        float* row = logits_.data();
        for (const Piece& p : pieces)
            for (size_t i = p.begin; i < p.begin + p.count; ++i, row += vocab) {
                model_.workspace().elementwise->log_softmax(row, vocab, row);
                const int32_t label = p.document->labels[i];
                out_[p.document->at + i] = label < 0 ? 0.0f : row[label];
            }
        return Ok{};
    }

private:
    const LanguageModel& model_;
    std::span<float> out_;
    std::vector<float> logits_;
};

// Computes the documents one after another, in pieces of `piece` tokens (0: whole).
Status in_pieces(const LanguageModel& model, std::span<const Document> documents, size_t piece, std::span<float> out) {
    EnginePass pass(model, out);
    for (const Document& d : documents) {
        NIBBLE_TRY(const auto pool, model.make_pool(std::ssize(d.tokens), 1));
        Sequence sequence = pool->sequence();
        const size_t step = piece ? piece : d.tokens.size();
        for (size_t at = 0; at < d.tokens.size(); at += step) {
            const EnginePass::Piece one{&d, &sequence, at, std::min(step, d.tokens.size() - at)};
            NIBBLE_CHECK(pass.run({&one, 1}));
        }
    }
    return Ok{};
}

// Computes three documents at a time, in pieces of 5, 6 and 7 tokens that share batches.
Status together(const LanguageModel& model, std::span<const Document> documents, std::span<float> out) {
    EnginePass pass(model, out);
    for (size_t first = 0; first < documents.size(); first += 3) {
        const auto some = documents.subspan(first, std::min<size_t>(3, documents.size() - first));
        int64_t tokens = 0;
        for (const Document& d : some) tokens += std::ssize(d.tokens) + kv_page_tokens;
        NIBBLE_TRY(const auto pool, model.make_pool(tokens, std::ssize(some)));
        std::vector<std::unique_ptr<Sequence>> sequences;
        for (size_t i = 0; i < some.size(); ++i) sequences.push_back(std::make_unique<Sequence>(pool->sequence()));
        std::vector<size_t> done(some.size());
        while (true) {
            std::vector<EnginePass::Piece> pieces;
            for (size_t i = 0; i < some.size(); ++i) {
                const size_t count = std::min(5 + i, some[i].tokens.size() - done[i]);
                if (count == 0) continue;
                pieces.push_back({&some[i], sequences[i].get(), done[i], count});
                done[i] += count;
            }
            if (pieces.empty()) break;
            NIBBLE_CHECK(pass.run(pieces));
        }
    }
    return Ok{};
}

}  // namespace

void count_difference(float got, float want, int64_t& mismatches, double& apart) {
    if (std::bit_cast<uint32_t>(got) == std::bit_cast<uint32_t>(want)) return;
    ++mismatches;
    apart = std::max(apart, std::abs(double{got} - want));
}

Result<ForwardCheck> check_forward(TrainEngine& trainer, const TrainBatch& batch) {
    NIBBLE_TRY(const auto served, trainer.serving());
    return check_forward(trainer, batch, *served);
}

Result<ForwardCheck> check_forward(TrainEngine& trainer, const TrainBatch& batch, const LanguageModel& model) {
    std::vector<float> want(static_cast<size_t>(batch.size())), got(want.size());
    NIBBLE_CHECK(trainer.log_probs(batch, want));
    const std::vector<Document> documents = documents_of(batch);
    using Way = std::pair<std::string_view, std::function<Status()>>;
    const std::array<Way, 4> ways{Way{"prefill", [&] { return in_pieces(model, documents, 0, got); }},
                                  Way{"chunks", [&] { return in_pieces(model, documents, 7, got); }},
                                  Way{"token by token", [&] { return in_pieces(model, documents, 1, got); }},
                                  Way{"together", [&] { return together(model, documents, got); }}};
    ForwardCheck check{.promised = !trainer.recipe().sees_neighbours()};
    for (size_t w = 0; w < ways.size(); ++w) {
        ForwardWay& way = check.ways[w];
        way.name = ways[w].first;
        std::ranges::fill(got, 1.0f);  // 1 cannot be a log-probability
        NIBBLE_CHECK(ways[w].second());
        for (size_t i = 0; i < want.size(); ++i) {
            if (batch.labels[i] < 0) continue;
            ++way.labels;
            count_difference(got[i], want[i], way.mismatches, way.apart);
        }
    }
    return check;
}

}  // namespace nibble
