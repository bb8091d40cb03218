#include "architecture/shards.h"

#include <algorithm>
#include <iterator>
#include <string>

namespace nibble {
namespace {

using Division = RowSegment::Division;

struct PartRange {
    int64_t begin = 0, end = 0;
};

// Returns the parts of a rank; their numbers differ by at most one between ranks.
PartRange parts_of(int64_t parts, int ranks, int rank) {
    return {parts * rank / ranks, parts * (int64_t{rank} + 1) / ranks};
}

RowRange rows_of_segment(const RowSegment& segment, int ranks, int rank) {
    if (segment.division == Division::none || segment.parts == 0) return {0, segment.rows};
    PartRange parts = parts_of(segment.parts, ranks, rank);
    if (segment.division == Division::expert) {
        const bool own = parts.begin <= segment.part && segment.part < parts.end;
        return {0, own ? segment.rows : 0};
    }
    if (segment.division == Division::copied && segment.parts < ranks) {
        parts.begin = segment.parts * rank / ranks;
        parts.end = parts.begin + 1;
    }
    const int64_t rows = segment.rows / segment.parts;
    return {parts.begin * rows, parts.end * rows};
}

bool allows(const RowSegment& segment, int ranks) {
    switch (segment.division) {
        case Division::none:
            return true;
        case Division::equal:
            return segment.parts % ranks == 0;
        case Division::copied:
            return segment.parts % ranks == 0 || ranks % segment.parts == 0;
        case Division::even:
        case Division::expert:
            return segment.parts >= ranks;
    }
    return false;
}

}  // namespace

std::vector<RowRange> rank_rows(const TensorEntry& tensor, int ranks, int rank) {
    std::vector<RowRange> list;
    int64_t first = 0;
    for (const RowSegment& segment : tensor.segments) {
        const RowRange rows = rows_of_segment(segment, ranks, rank);
        const RowRange in_tensor{first + rows.begin, first + rows.end};
        first += segment.rows;
        if (in_tensor.begin == in_tensor.end) continue;
        if (!list.empty() && list.back().end == in_tensor.begin)
            list.back().end = in_tensor.end;
        else
            list.push_back(in_tensor);
    }
    return list;
}

bool allows_ranks(std::span<const TensorEntry> tensors, int ranks) {
    return std::ranges::all_of(tensors, [&](const TensorEntry& tensor) {
        return std::ranges::all_of(tensor.segments, [&](const RowSegment& segment) { return allows(segment, ranks); });
    });
}

Status check_ranks(std::span<const TensorEntry> tensors, int ranks) {
    if (ranks < 1) return fail(ErrorKind::usage, "{} ranks: there must be at least one", ranks);
    for (const TensorEntry& tensor : tensors)
        for (const RowSegment& segment : tensor.segments) {
            if (allows(segment, ranks)) continue;
            std::string working;
            for (int n = 1; n <= most_ranks; ++n)
                if (allows_ranks(tensors, n)) working += fmt::format("{}{}", working.empty() ? "" : ", ", n);
            return fail(ErrorKind::usage, "{} ranks: {} has {} {}; numbers of ranks that work, up to {}: {}", ranks,
                        tensor.name, segment.parts, segment.what, most_ranks, working);
        }
    return Ok{};
}

std::vector<TensorEntry> sharded_tensors(const ModelConfig& model) {
    std::vector<TensorEntry> tensors = tensor_list(model), prediction = prediction_tensor_list(model);
    std::ranges::move(prediction, std::back_inserter(tensors));
    return tensors;
}

}  // namespace nibble
