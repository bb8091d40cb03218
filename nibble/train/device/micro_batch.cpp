#include "train/device/micro_batch.h"

#include <algorithm>
#include <numeric>

namespace nibble {
namespace {

// Returns where the micro-batch's documents begin, counted from its first token.
std::vector<int64_t> documents_of_part(const MicroBatch& m) {
    const int64_t from = m.row * m.batch->seq, to = from + m.tokens();
    std::vector<int64_t> begins;
    for (auto at = std::ranges::lower_bound(m.batch->documents, from); at != m.batch->documents.end() && *at < to; ++at)
        begins.push_back(*at - from);
    return begins;
}

}  // namespace

std::vector<MicroBatch> cut_micro_batches(std::span<const TrainBatch> batches, int64_t rows) {
    std::vector<MicroBatch> list;
    int64_t first = 0;
    for (const TrainBatch& b : batches) {
        for (int64_t row = 0; row < b.rows; row += rows)
            list.push_back({.batch = &b, .row = row, .rows = std::min(rows, b.rows - row), .first_row = first + row});
        first += b.rows;
    }
    return list;
}

Batch texts_of(const MicroBatch& m) {
    const std::vector<int64_t> begins = documents_of_part(m);
    std::vector<Segment> segments;
    for (size_t i = 0; i < begins.size(); ++i) {
        const int64_t end = i + 1 < begins.size() ? begins[i + 1] : m.tokens(), count = end - begins[i];
        segments.push_back({.sequence = nullptr,
                            .tokens = m.ids().subspan(static_cast<size_t>(begins[i]), static_cast<size_t>(count)),
                            .logits_from = count});
    }
    return Batch(std::move(segments));
}

std::vector<int32_t> first_rows(const MicroBatch& m) {
    const std::vector<int64_t> begins = documents_of_part(m);
    std::vector<int32_t> first(static_cast<size_t>(m.tokens()));
    for (size_t i = 0; i < begins.size(); ++i) {
        const int64_t end = i + 1 < begins.size() ? begins[i + 1] : m.tokens();
        std::fill(first.begin() + begins[i], first.begin() + end, static_cast<int32_t>(begins[i]));
    }
    return first;
}

RowsById rows_by_id(std::span<const int32_t> tokens) {
    RowsById r;
    r.order.resize(tokens.size());
    std::iota(r.order.begin(), r.order.end(), 0);
    std::ranges::stable_sort(r.order, {}, [&](int32_t row) { return tokens[static_cast<size_t>(row)]; });
    for (size_t i = 0; i < r.order.size(); ++i) {
        const int32_t id = tokens[static_cast<size_t>(r.order[i])];
        if (!r.ids.empty() && r.ids.back() == id) continue;
        r.ids.push_back(id);
        r.begin.push_back(static_cast<int32_t>(i));
    }
    r.begin.push_back(static_cast<int32_t>(tokens.size()));
    return r;
}

}  // namespace nibble
