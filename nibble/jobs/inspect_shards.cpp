#include "jobs/inspect_shards.h"

#include "architecture/shards.h"
#include "checkpoint/modules.h"
#include "model/cpu/model.h"
#include "page/numbers.h"

#include <fmt/ranges.h>

#include <map>
#include <unordered_map>

namespace nibble {
namespace {

// Tensors of all layers and experts with equal shapes and equal rows.
struct ShardRow {
    std::string name, shape, divided;
    std::vector<std::string> rows;  // by rank
    int64_t tensors = 0;
};

std::string ranges_text(const std::vector<RowRange>& ranges) {
    std::string text;
    for (const RowRange& r : ranges) text += fmt::format("{}{}:{}", text.empty() ? "" : " ", r.begin, r.end);
    return text.empty() ? "-" : text;
}

std::string division_text(const TensorEntry& tensor) {
    std::string text;
    for (const RowSegment& s : tensor.segments) {
        if (s.division == RowSegment::Division::none) continue;
        const std::string one = fmt::format("{} {}", s.parts, s.what);
        if (text.find(one) == std::string::npos) text += (text.empty() ? "" : ", ") + one;
    }
    return text.empty() ? "every rank has all rows" : text;
}

int64_t rows_of_list(const std::vector<RowRange>& ranges) {
    int64_t rows = 0;
    for (const RowRange& r : ranges) rows += r.end - r.begin;
    return rows;
}

int64_t all_rows(const TensorEntry& tensor) {
    int64_t rows = 0;
    for (const RowSegment& s : tensor.segments) rows += s.rows;
    return rows;
}

}  // namespace

Result<ShardText> inspect_shards(const Checkpoint& checkpoint, int ranks) {
    NIBBLE_TRY(const ModelConfig model, model_config(checkpoint));
    const std::vector<TensorEntry> tensors = sharded_tensors(model);
    NIBBLE_CHECK(check_ranks(tensors, ranks));
    std::unordered_map<std::string_view, int64_t> stored;  // bytes by name
    for (const CheckpointTensor& t : checkpoint.tensors()) stored.emplace(t.name, t.stored_bytes);

    std::vector<int64_t> bytes(static_cast<size_t>(ranks));
    std::vector<ShardRow> rows;
    std::map<std::string, size_t> row_of;
    Json list = Json::array();
    for (const TensorEntry& tensor : tensors) {
        ShardRow row{.name = module_kind_name(tensor.name),
                     .shape = fmt::format("[{}]", fmt::join(tensor.shape, ", ")),
                     .divided = division_text(tensor),
                     .rows = {}};
        Json by_rank = Json::array();
        const auto found = stored.find(tensor.name);
        for (int rank = 0; rank < ranks; ++rank) {
            const std::vector<RowRange> ranges = rank_rows(tensor, ranks, rank);
            row.rows.push_back(ranges_text(ranges));
            Json pairs = Json::array();
            for (const RowRange& r : ranges) pairs.push_back({r.begin, r.end});
            by_rank.push_back(std::move(pairs));
            if (found != stored.end() && all_rows(tensor) > 0)
                bytes[static_cast<size_t>(rank)] += static_cast<int64_t>(
                    double(found->second) * double(rows_of_list(ranges)) / double(all_rows(tensor)));
        }
        list.push_back(
            {{"name", tensor.name}, {"shape", tensor.shape}, {"divided", row.divided}, {"rows", std::move(by_rank)}});
        const std::string key = fmt::format("{} {} {}", row.name, row.shape, fmt::join(row.rows, ";"));
        const auto [at, added] = row_of.emplace(key, rows.size());
        if (added) rows.push_back(std::move(row));
        ++rows[at->second].tensors;
    }

    ShardText out;
    out.text =
        fmt::format("{}\n  {} ranks; rows of the first dimension, begin:end\n", checkpoint.path().string(), ranks);
    for (const ShardRow& row : rows) {
        out.text += fmt::format("\n  {} {}{}: {}\n", row.name, row.shape,
                                row.tensors > 1 ? fmt::format(" x {}", row.tensors) : "", row.divided);
        if (row.divided.starts_with("every")) continue;
        for (size_t rank = 0; rank < row.rows.size(); ++rank)
            out.text += fmt::format("    rank {}: {}\n", rank, row.rows[rank]);
    }
    out.text += "\n";
    for (size_t rank = 0; rank < bytes.size(); ++rank)
        out.text += fmt::format("  rank {}: {} of weights\n", rank, human_bytes(bytes[rank]));
    out.json = {{"ranks", ranks}, {"bytes", bytes}, {"tensors", std::move(list)}};
    return out;
}

}  // namespace nibble
