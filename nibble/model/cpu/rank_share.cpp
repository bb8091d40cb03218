#include "model/cpu/rank_share.h"

#include "formats/minifloat.h"
#include "model/cpu/workspace.h"

#include <algorithm>

namespace nibble {
namespace {

int64_t width_of(std::span<const RowRange> ranges) {
    int64_t sum = 0;
    for (const RowRange& range : ranges) sum += range.end - range.begin;
    return sum;
}

// Copies the columns of `ranges` from adjacent rows [n, width] to rows y. `value` converts an element.
template <class T, class Value>
void put_columns(const T* from, int64_t width, std::span<const RowRange> ranges, float* y, int64_t stride,
                 int64_t first, int64_t last, const Value& value) {
    for (int64_t i = first; i < last; ++i) {
        const T* row = from + i * width;
        for (const RowRange& range : ranges)
            for (int64_t j = range.begin; j < range.end; ++j) y[i * stride + j] = value(*row++);
    }
}

// Returns what other ranks are sent: the numbers, or with Workspace::bf16() their upper halves in memory of the arena.
using Sent = std::span<const std::byte>;
Sent sent_values(const float* own, int64_t count, Workspace& work) {
    if (!work.bf16()) return std::as_bytes(std::span(own, static_cast<size_t>(count)));
    auto* codes = work.arena.array<uint16_t>(count);
    for (int64_t i = 0; i < count; ++i) codes[i] = static_cast<uint16_t>(float_bits(own[i]) >> 16);
    return std::as_bytes(std::span(codes, static_cast<size_t>(count)));
}

}  // namespace

RankColumns::RankColumns(Communicator& ranks, std::vector<std::vector<RowRange>> of)
    : ranks_(&ranks), of_(std::move(of)) {
    for (const auto& ranges : of_) {
        widths_.push_back(width_of(ranges));
        for (const RowRange& range : ranges) all_ = std::max(all_, range.end);
    }
}

Status RankColumns::gather(const float* own, int64_t n, float* y, int64_t stride, Workspace& work) const {
    const Arena::Scope scope(work.arena);
    const auto rank = static_cast<size_t>(ranks_->rank());
    const bool half = work.bf16();
    const int64_t size = half ? 2 : 4;
    std::vector<std::span<std::byte>> parts;
    for (size_t r = 0; r < of_.size(); ++r)
        parts.emplace_back(r == rank ? nullptr : work.arena.bytes(n * widths_[r] * size),
                           static_cast<size_t>(r == rank ? 0 : n * widths_[r] * size));
    NIBBLE_CHECK(ranks_->gather_into(sent_values(own, n * widths_[rank], work), parts));
    work.parallel_rows(n, 2 * all_, [&](int64_t first, int64_t last) {
        for (size_t r = 0; r < of_.size(); ++r) {
            if (r == rank)
                put_columns(own, widths_[r], of_[r], y, stride, first, last, [](float x) { return x; });
            else if (half)
                put_columns(reinterpret_cast<const uint16_t*>(parts[r].data()), widths_[r], of_[r], y, stride, first,
                            last, [](uint16_t code) { return float_from_bits(uint32_t{code} << 16); });
            else
                put_columns(reinterpret_cast<const float*>(parts[r].data()), widths_[r], of_[r], y, stride, first, last,
                            [](float x) { return x; });
        }
    });
    return Ok{};
}

Result<std::shared_ptr<const RankShare>> RankShare::create(const ModelConfig& model, Communicator& ranks) {
    std::shared_ptr<const RankShare> share(new RankShare(model, ranks));
    NIBBLE_CHECK(check_ranks(share->tensors_, ranks.size()));
    return share;
}

RankShare::RankShare(const ModelConfig& model, Communicator& ranks) : ranks_(&ranks), tensors_(sharded_tensors(model)) {
    // The rows of an embedding are read when a token needs them. As a tied head it is a divided linear.
    if (model.head == model.embedding)
        for (TensorEntry& tensor : tensors_)
            if (tensor.name == model.head) tensor.segments = {rows_in_runs(model.vocab)};
    for (size_t i = 0; i < tensors_.size(); ++i) index_.emplace(tensors_[i].name, i);
}

const TensorEntry* RankShare::find(const std::string& tensor) const {
    const auto at = index_.find(tensor);
    return at == index_.end() ? nullptr : &tensors_[at->second];
}

bool RankShare::divides(const std::string& tensor) const {
    const TensorEntry* entry = find(tensor);
    return entry && std::ranges::any_of(entry->segments, [](const RowSegment& segment) {
               return segment.division != RowSegment::Division::none;
           });
}

bool RankShare::whole_or_none(const std::string& tensor) const {
    const TensorEntry* entry = find(tensor);
    return entry && entry->segments[0].division == RowSegment::Division::expert;
}

std::vector<RowRange> RankShare::rows(const std::string& tensor) const {
    const TensorEntry* entry = find(tensor);
    return entry ? rank_rows(*entry, size(), rank()) : std::vector<RowRange>{};
}

RankColumnsPtr RankShare::columns(std::span<const std::string> weights) const {
    std::vector<std::vector<RowRange>> of(static_cast<size_t>(size()));
    int64_t first = 0;
    for (const std::string& weight : weights) {
        const TensorEntry& entry = *find(weight);
        for (int r = 0; r < size(); ++r)
            for (const RowRange& range : rank_rows(entry, size(), r))
                of[static_cast<size_t>(r)].push_back({first + range.begin, first + range.end});
        first += entry.shape.front();
    }
    return std::make_shared<RankColumns>(*ranks_, std::move(of));
}

TensorEntry RankShare::like(const std::string& tensor, int64_t rows, size_t index) const {
    TensorEntry like;
    like.segments = {find(tensor)->segments[index]};
    like.segments[0].rows = rows;
    return like;
}

RankColumnsPtr RankShare::columns_like(const std::string& tensor, int64_t columns, size_t index) const {
    const TensorEntry entry = like(tensor, columns, index);
    std::vector<std::vector<RowRange>> of;
    for (int r = 0; r < size(); ++r) of.push_back(rank_rows(entry, size(), r));
    return std::make_shared<RankColumns>(*ranks_, std::move(of));
}

std::vector<float> RankShare::own_rows(const std::vector<float>& all, const std::string& tensor, size_t index) const {
    std::vector<float> own;
    for (const RowRange& range : rank_rows(like(tensor, std::ssize(all), index), size(), rank()))
        own.insert(own.end(), all.begin() + range.begin, all.begin() + range.end);
    return own;
}

int64_t RankShare::own_parts(const std::string& tensor, size_t index) const {
    return width_of(rank_rows(like(tensor, find(tensor)->segments[index].parts, index), size(), rank()));
}

Status RankShare::gather_rows(float* y, int64_t width, std::span<const RowRange> of, Workspace& work) const {
    const Arena::Scope scope(work.arena);
    const auto mine = static_cast<size_t>(rank());
    const bool half = work.bf16();
    const auto values = [&](size_t r) { return (of[r].end - of[r].begin) * width; };
    std::vector<std::span<std::byte>> parts;
    for (size_t r = 0; r < of.size(); ++r) {
        float* to = y + of[r].begin * width;
        auto* at = half && r != mine ? work.arena.bytes(2 * values(r)) : reinterpret_cast<std::byte*>(to);
        parts.emplace_back(at, static_cast<size_t>(r == mine ? 0 : values(r) * (half ? 2 : 4)));
    }
    const Sent sent = sent_values(y + of[mine].begin * width, values(mine), work);
    NIBBLE_CHECK(ranks_->gather_into(sent, parts));
    for (size_t r = 0; half && r < of.size(); ++r) {
        if (r == mine) continue;
        const auto* codes = reinterpret_cast<const uint16_t*>(parts[r].data());
        float* to = y + of[r].begin * width;
        for (int64_t i = 0; i < values(r); ++i) to[i] = float_from_bits(uint32_t{codes[i]} << 16);
    }
    return Ok{};
}

RowRange RankShare::experts(int64_t experts, int rank) const {
    TensorEntry like;
    like.segments = {{experts, RowSegment::Division::even, experts, "experts"}};
    const auto ranges = rank_rows(like, size(), rank);
    return ranges.empty() ? RowRange{} : ranges[0];
}

}  // namespace nibble
