#include "train/device/flat_shards.h"

#include "kernels/optimizer_cuda.h"

#include <algorithm>

namespace nibble {

std::vector<FlatLayout::Range> flat_parts(const FlatLayout& flat) {
    std::vector<int64_t> begins{flat.embedding.at};
    // A block without matrices begins where the next one does.
    const int64_t end = flat.tied ? flat.matrix_elements : flat.head.at;
    std::vector<int64_t> blocks(flat.units.size());
    int64_t next = end;
    for (size_t b = flat.units.size(); b-- > 0;) {
        if (!flat.units[b].empty()) next = flat.units[b][0].at;
        blocks[b] = next;
    }
    begins.insert(begins.end(), blocks.begin(), blocks.end());
    if (!flat.tied) begins.push_back(flat.head.at);
    std::vector<FlatLayout::Range> parts;
    for (size_t i = 0; i < begins.size(); ++i)
        parts.push_back({begins[i], (i + 1 < begins.size() ? begins[i + 1] : flat.matrix_elements) - begins[i]});
    return parts;
}

std::vector<FlatLayout::Range> flat_gaps(const FlatLayout& flat, int64_t begin, int64_t end) {
    std::vector<FlatLayout::Range> matrices;
    const auto add = [&](const FlatMatrix& m) {
        if (m.at >= begin && m.at < end) matrices.push_back({m.at, m.elements()});
    };
    add(flat.embedding);
    for (const std::vector<FlatMatrix>& units : flat.units)
        for (const FlatMatrix& m : units) add(m);
    if (!flat.tied) add(flat.head);
    std::vector<FlatLayout::Range> gaps;
    for (const FlatLayout::Range& m : matrices) {
        if (m.at > begin) gaps.push_back({begin, m.at - begin});
        begin = m.at + m.count;
    }
    if (begin < end) gaps.push_back({begin, end - begin});
    return gaps;
}

FlatShards FlatShards::make(const FlatLayout& flat, Sharding sharding, int size) {
    FlatShards shards;
    shards.sharding_ = sharding;
    shards.elements_.assign(static_cast<size_t>(size), 0);
    const int64_t all = flat.matrix_elements, each = cuda::section_elements(all);
    const auto add = [&](int rank, int64_t first, int64_t sections) {
        FlatRun run{.rank = rank, .first_section = static_cast<int>(first), .sections = static_cast<int>(sections)};
        run.begin = std::min(all, each * first);
        run.end = std::min(all, each * (first + sections));
        int64_t& kept = shards.elements_[static_cast<size_t>(rank)];
        run.local = kept;
        kept += run.elements();
        if (sections > 0) shards.runs_.push_back(run);
    };
    // ends of parts, in sections; a section that contains a boundary belongs to the earlier part
    std::vector<int64_t> ends;
    if (sharding == Sharding::all)
        for (const FlatLayout::Range& part : flat_parts(flat))
            ends.push_back(std::min<int64_t>(cuda::square_sections, (part.at + part.count + each - 1) / each));
    if (sharding == Sharding::states) ends.push_back(cuda::square_sections);
    int64_t begin = 0;
    for (const int64_t end : ends) {
        const int64_t sections = end - begin;
        for (int r = 0; r < size; ++r) {
            const int64_t first = begin + sections * r / size;
            add(r, first, begin + sections * (r + 1) / size - first);
        }
        begin = end;
    }
    add(size - 1, begin, cuda::square_sections - begin);  // the sections after the last element
    return shards;
}

int FlatShards::largest() const { return static_cast<int>(std::ranges::max_element(elements_) - elements_.begin()); }

std::vector<FlatRun> FlatShards::within(int64_t begin, int64_t end) const {
    std::vector<FlatRun> some;
    for (FlatRun run : runs_) {
        const int64_t from = std::max(run.begin, begin), to = std::min(run.end, end);
        if (from >= to) continue;
        run.local += from - run.begin;
        run.begin = from, run.end = to;
        some.push_back(run);
    }
    return some;
}

}  // namespace nibble
