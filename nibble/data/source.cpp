#include "data/source.h"

#include <algorithm>
#include <set>
#include <system_error>

namespace nibble {
namespace {

namespace fs = std::filesystem;

constexpr size_t most_row_bytes = size_t{256} << 20;

bool is_text_file(const fs::path& path) {
    static const std::set<std::string> endings{".txt", ".md", ".jsonl", ".ndjson", ".json", ".csv", ".tsv", ".parquet"};
    // Metadata files of the library datasets.
    static const std::set<std::string> about{"dataset_info.json", "dataset_infos.json", "dataset_dict.json",
                                             "state.json"};
    return endings.contains((path.extension() == ".gz" ? path.stem() : path).extension().string()) &&
           !about.contains(path.filename().string());
}

const char* unit_of(DataFormat format) {
    return format == DataFormat::text ? "document" : format == DataFormat::lines ? "line" : "row";
}

bool is_blank(std::string_view text) { return text.find_first_not_of(" \t\r\n") == text.npos; }

}  // namespace

Result<std::vector<fs::path>> find_text_files(const std::vector<fs::path>& inputs) {
    std::vector<fs::path> found;
    for (const fs::path& input : inputs) {
        std::error_code error;
        if (!fs::is_directory(input, error)) {
            if (!fs::exists(input, error)) return fail("{}: no such file or folder", input.string());
            found.push_back(input);
            continue;
        }
        std::vector<fs::path> below;
        for (fs::recursive_directory_iterator it(input, error), end; !error && it != end; it.increment(error))
            if (it->is_regular_file(error) && is_text_file(it->path())) below.push_back(it->path());
        if (error) return fail("{}: cannot list: {}", input.string(), error.message());
        if (below.empty())
            return fail("{}: has no *.txt, *.md, *.jsonl, *.json, *.csv, *.tsv or *.parquet files", input.string());
        std::ranges::sort(below);
        found.insert(found.end(), below.begin(), below.end());
    }
    return found;
}

Status DocumentReader::open_next() {
    const fs::path& path = files_[opened_];
    NIBBLE_TRY(MappedFile map, MappedFile::open(path));
    const std::string_view bytes(reinterpret_cast<const char*>(map.bytes().data()), map.bytes().size());
    if (bytes.empty()) return fail("{}: is empty", path.string());
    NIBBLE_TRY(current_, open_pieces(path, bytes, separator_).within(path.string()));
    number_ = 0;
    maps_.push_back(std::move(map));
    ++opened_;
    return Ok{};
}

Result<std::optional<RawDocument>> DocumentReader::next() {
    for (;;) {
        if (!current_.pieces) {
            if (opened_ == files_.size()) return std::optional<RawDocument>();
            NIBBLE_CHECK(open_next());
        }
        const std::string file = files_[opened_ - 1].string();
        const char* const unit = unit_of(current_.kind.format);
        auto found = current_.pieces->next();
        if (!found.ok()) {
            if (number_ == 0) return std::move(found).error().within(file);
            return std::move(found).error().within(fmt::format("{}: after {} {}", file, unit, number_));
        }
        if (!*found) {
            current_.pieces.reset();
            bytes_read_ += static_cast<int64_t>(maps_.back().bytes().size());
            continue;
        }
        RawDocument document{.piece = **std::move(found),
                             .source = opened_ - 1,
                             .number = ++number_,
                             .row = current_.kind.rows(),
                             .unit = unit};
        if (document.row && document.text().size() > most_row_bytes)
            return fail("{}: {} {} has more than 256 MiB", file, unit, number_);
        if (!is_blank(document.text())) return std::optional(std::move(document));
    }
}

}  // namespace nibble
