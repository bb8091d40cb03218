#include "train/data_source.h"

#include "base/utf8.h"

#include <algorithm>
#include <set>
#include <system_error>

namespace nibble {
namespace {

namespace fs = std::filesystem;

constexpr size_t most_line_bytes = size_t{256} << 20, unpack_step = size_t{1} << 20;

bool is_text_file(const fs::path& path) {
    static const std::set<std::string> endings{".txt", ".md", ".jsonl"};
    return endings.contains((path.extension() == ".gz" ? path.stem() : path).extension().string());
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
        if (below.empty()) return fail("{}: has no *.txt, *.md or *.jsonl files", input.string());
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
    if (bytes.starts_with("PAR1"))
        return fail("{}: is a Parquet file, which is not read; write its text as .jsonl, a line {{\"text\": ...}} each",
                    path.string());
    const bool packed = path.extension() == ".gz";
    json_ = (packed ? path.stem() : path).extension() == ".jsonl";
    rest_ = {};
    packed_.reset();
    buffer_.clear();
    begin_ = 0;
    number_ = 0;
    if (packed) {
        NIBBLE_TRY(packed_, GunzipStream::begin(bytes).within(path.string()));
        NIBBLE_TRY(bool more, packed_->read(buffer_, unpack_step).within(path.string()));
        while (more && buffer_.size() < 3) {
            NIBBLE_TRY(more, packed_->read(buffer_, unpack_step).within(path.string()));
        }
        begin_ = buffer_.size() - without_byte_order_mark(buffer_).size();
    } else {
        rest_ = without_byte_order_mark(bytes);
    }
    maps_.push_back(std::move(map));
    ++opened_;
    open_ = true;
    return Ok{};
}

Result<std::optional<RawDocument>> DocumentReader::next() {
    for (;;) {
        if (!open_) {
            if (opened_ == files_.size()) return std::optional<RawDocument>();
            NIBBLE_CHECK(open_next());
        }
        NIBBLE_TRY(auto found, (packed_ ? next_unpacked() : next_view()).within(files_[opened_ - 1].string()));
        if (!found) {
            open_ = false;
            bytes_read_ += static_cast<int64_t>(maps_.back().bytes().size());
            continue;
        }
        found->source = opened_ - 1;
        found->number = ++number_;
        found->json = json_;
        if (json_ && found->text().size() > most_line_bytes)
            return fail("{}: line {} has more than 256 MiB", files_[opened_ - 1].string(), number_);
        if (!is_blank(found->text())) return found;
    }
}

Result<std::optional<RawDocument>> DocumentReader::next_view() {
    if (rest_.empty()) return std::optional<RawDocument>();
    const std::string_view delimiter = json_ ? std::string_view("\n") : std::string_view(separator_);
    const size_t end = delimiter.empty() ? rest_.npos : rest_.find(delimiter);
    RawDocument out;
    out.view = rest_.substr(0, end);
    rest_.remove_prefix(end == rest_.npos ? rest_.size() : end + delimiter.size());
    return std::optional(std::move(out));
}

Result<std::optional<RawDocument>> DocumentReader::next_unpacked() {
    const std::string_view delimiter = json_ ? std::string_view("\n") : std::string_view(separator_);
    size_t look = begin_;
    for (;;) {
        const size_t end = delimiter.empty() ? buffer_.npos : buffer_.find(delimiter, look);
        if (end != buffer_.npos) {
            RawDocument out;
            out.owned = buffer_.substr(begin_, end - begin_);
            begin_ = end + delimiter.size();
            return std::optional(std::move(out));
        }
        buffer_.erase(0, begin_);
        begin_ = 0;
        look = buffer_.size() - std::min(buffer_.size(), delimiter.empty() ? 0 : delimiter.size() - 1);
        if (json_ && buffer_.size() > most_line_bytes) return fail("line {} has more than 256 MiB", number_ + 1);
        NIBBLE_TRY(const bool more, packed_->read(buffer_, unpack_step));
        if (more) continue;
        if (buffer_.empty()) return std::optional<RawDocument>();
        RawDocument out;
        out.owned = std::move(buffer_);
        buffer_.clear();
        return std::optional(std::move(out));
    }
}

}  // namespace nibble
