#include "data/document_pieces.h"

#include "base/json.h"
#include "base/utf8.h"
#include "data/parquet_rows.h"
#include "data/rows.h"
#include "data/table.h"
#include "text/gzip.h"

#include <algorithm>
#include <utility>

namespace nibble {
namespace {

namespace fs = std::filesystem;

constexpr size_t unpack_step = size_t{1} << 20, most_unpacked = size_t{1} << 30, most_piece = size_t{512} << 20;

using NextPiece = Result<std::optional<DocumentPiece>>;

// Pieces between delimiters; an empty delimiter: one piece.
class ViewPieces : public DocumentPieces {
public:
    ViewPieces(std::string_view content, std::string delimiter) : rest_(content), delimiter_(std::move(delimiter)) {}

    NextPiece next() override {
        if (rest_.empty()) return std::optional<DocumentPiece>();
        const size_t end = delimiter_.empty() ? rest_.npos : rest_.find(delimiter_);
        DocumentPiece out{.owned = {}, .view = rest_.substr(0, end)};
        rest_.remove_prefix(end == rest_.npos ? rest_.size() : end + delimiter_.size());
        return std::optional(std::move(out));
    }

private:
    std::string_view rest_;
    std::string delimiter_;
};

// The same for compressed content. `buffer` holds the part that is already decompressed.
class PackedPieces : public DocumentPieces {
public:
    PackedPieces(GunzipStream packed, std::string buffer, std::string delimiter)
        : packed_(std::move(packed)), buffer_(std::move(buffer)), delimiter_(std::move(delimiter)) {}

    NextPiece next() override {
        for (size_t look = begin_;;) {
            const size_t end = delimiter_.empty() ? buffer_.npos : buffer_.find(delimiter_, look);
            if (end != buffer_.npos) {
                DocumentPiece out{.owned = buffer_.substr(begin_, end - begin_), .view = {}};
                begin_ = end + delimiter_.size();
                return std::optional(std::move(out));
            }
            buffer_.erase(0, begin_);
            begin_ = 0;
            look = buffer_.size() - std::min(buffer_.size(), delimiter_.empty() ? 0 : delimiter_.size() - 1);
            if (buffer_.size() > most_piece) return fail("a document has more than 512 MiB");
            NIBBLE_TRY(const bool more, packed_.read(buffer_, unpack_step));
            if (more) continue;
            if (buffer_.empty()) return std::optional<DocumentPiece>();
            DocumentPiece out{.owned = std::exchange(buffer_, {}), .view = {}};
            return std::optional(std::move(out));
        }
    }

private:
    GunzipStream packed_;
    std::string buffer_;
    size_t begin_ = 0;  // begin of the next piece
    std::string delimiter_;
};

class ArrayPieces : public DocumentPieces {
public:
    explicit ArrayPieces(std::string_view content) : rest_(content.substr(content.find('[') + 1)) {}
    NextPiece next() override {
        if (ended_) return std::optional<DocumentPiece>();
        NIBBLE_TRY(const auto element, next_element(rest_));
        ended_ = !element;
        if (ended_) return std::optional<DocumentPiece>();
        return std::optional(DocumentPiece{.owned = {}, .view = *element});
    }

private:
    std::string_view rest_;
    bool ended_ = false;
};

// Returns each record as a JSON object of texts.
class TablePieces : public DocumentPieces {
public:
    TablePieces(std::string_view content, char separator, std::vector<std::string> names)
        : rest_(content), separator_(separator), names_(std::move(names)) {}

    NextPiece next() override {
        NIBBLE_TRY(auto record, next_record(rest_, separator_));
        if (!record) return std::optional<DocumentPiece>();
        if (record->size() != names_.size())
            return fail("a record has {} fields, but the first line has {} names", record->size(), names_.size());
        Json row = Json::object();
        for (size_t i = 0; i < names_.size(); ++i) {
            if (!utf8_valid((*record)[i])) return fail("a field of '{}' is not UTF-8", names_[i]);
            row[names_[i]] = std::move((*record)[i]);
        }
        return std::optional(DocumentPiece{.owned = row.dump(), .view = {}});
    }

private:
    std::string_view rest_;
    char separator_;
    std::vector<std::string> names_;
};

class ParquetPieces : public DocumentPieces {
public:
    explicit ParquetPieces(ParquetRows rows) : rows_(std::move(rows)) {}
    NextPiece next() override {
        NIBBLE_TRY(auto row, rows_.next());
        if (!row) return std::optional<DocumentPiece>();
        return std::optional(DocumentPiece{.owned = *std::move(row), .view = {}});
    }

private:
    ParquetRows rows_;
};

// Returns the rows of one JSON object: the object itself, or the elements of its only list.
class ObjectPieces : public DocumentPieces {
public:
    explicit ObjectPieces(std::vector<std::string> rows) : rows_(std::move(rows)) {}
    NextPiece next() override {
        if (at_ == rows_.size()) return std::optional<DocumentPiece>();
        return std::optional(DocumentPiece{.owned = std::move(rows_[at_++]), .view = {}});
    }

private:
    std::vector<std::string> rows_;
    size_t at_ = 0;
};

Result<std::unique_ptr<DocumentPieces>> object_pieces(std::string_view content) {
    NIBBLE_TRY(const Json json, parse_json(content));
    std::vector<std::string> keys, rows;
    for (const auto& [key, value] : json.items()) keys.push_back(key);
    if (is_known_row(keys))
        return std::unique_ptr<DocumentPieces>(std::make_unique<ObjectPieces>(std::vector{json.dump()}));
    for (const auto& [key, value] : json.items()) {
        if (!value.is_array() || value.empty() || !value[0].is_object()) continue;
        if (!rows.empty()) return fail("has several lists of objects; write the rows as .jsonl");
        for (const Json& row : value) rows.push_back(row.dump());
    }
    if (rows.empty()) return fail("has neither a row nor a list of rows");
    return std::unique_ptr<DocumentPieces>(std::make_unique<ObjectPieces>(std::move(rows)));
}

Result<std::unique_ptr<DocumentPieces>> table_pieces(std::string_view content, char separator) {
    NIBBLE_TRY(auto names, next_record(content, separator));
    if (!names) return fail("has no line of names");
    if (!is_known_row(*names)) {
        Json row = Json::object();
        for (const std::string& name : *names) row[name] = "";
        NIBBLE_CHECK(data_row(row).within("the first line"));
    }
    return std::unique_ptr<DocumentPieces>(std::make_unique<TablePieces>(content, separator, *std::move(names)));
}

Result<std::unique_ptr<DocumentPieces>> pieces_of(const DataFileKind& kind, const fs::path& path,
                                                  std::string_view content, const std::string& separator) {
    switch (kind.format) {
        case DataFormat::text:
            return std::unique_ptr<DocumentPieces>(std::make_unique<ViewPieces>(content, separator));
        case DataFormat::lines:
            return std::unique_ptr<DocumentPieces>(std::make_unique<ViewPieces>(content, "\n"));
        case DataFormat::array:
            return std::unique_ptr<DocumentPieces>(std::make_unique<ArrayPieces>(content));
        case DataFormat::object:
            return object_pieces(content);
        case DataFormat::csv:
            return table_pieces(content, kind.separator);
        case DataFormat::parquet: {
            NIBBLE_TRY(auto rows, ParquetRows::open(path, data_row_keys()));
            return std::unique_ptr<DocumentPieces>(std::make_unique<ParquetPieces>(std::move(rows)));
        }
    }
    __builtin_unreachable();
}

// Owns the decompressed content.
class UnpackedPieces : public DocumentPieces {
public:
    static Result<std::unique_ptr<DocumentPieces>> open(const DataFileKind& kind, std::string content) {
        auto made = std::make_unique<UnpackedPieces>();
        made->content_ = std::move(content);
        NIBBLE_TRY(made->pieces_, pieces_of(kind, {}, made->content_, ""));
        return std::unique_ptr<DocumentPieces>(std::move(made));
    }
    NextPiece next() override {
        NIBBLE_TRY(auto piece, pieces_->next());
        if (piece && piece->view.data()) piece = DocumentPiece{.owned = std::string(piece->view), .view = {}};
        return piece;
    }

private:
    std::string content_;
    std::unique_ptr<DocumentPieces> pieces_;
};

Result<OpenedPieces> open_packed(const fs::path& path, std::string_view content, const std::string& separator) {
    NIBBLE_TRY(GunzipStream packed, GunzipStream::begin(content));
    std::string head;
    bool more = true;
    while (more && head.size() < unpack_step) {
        NIBBLE_TRY(more, packed.read(head, unpack_step));
    }
    head.erase(0, head.size() - without_byte_order_mark(head).size());
    OpenedPieces opened;
    const fs::path name = path.extension() == ".gz" ? path.stem() : path.filename();
    NIBBLE_TRY(opened.kind, data_file_kind(name.string(), head, !more));
    const bool streams = opened.kind.format == DataFormat::text || opened.kind.format == DataFormat::lines;
    if (streams) {
        const std::string delimiter = opened.kind.rows() ? "\n" : separator;
        opened.pieces = std::make_unique<PackedPieces>(std::move(packed), std::move(head), delimiter);
        return opened;
    }
    if (opened.kind.format == DataFormat::parquet) return fail("is a compressed Parquet file; decompress it: gzip -d");
    while (more && head.size() <= most_unpacked) {
        NIBBLE_TRY(more, packed.read(head, unpack_step));
    }
    if (more) return fail("has more than 1 GiB after decompression; decompress it: gzip -d");
    NIBBLE_TRY(opened.pieces, UnpackedPieces::open(opened.kind, std::move(head)));
    return opened;
}

}  // namespace

Result<OpenedPieces> open_pieces(const fs::path& path, std::string_view content, const std::string& separator) {
    if (content.starts_with("\x1F\x8B") || path.extension() == ".gz") return open_packed(path, content, separator);
    OpenedPieces opened;
    content = without_byte_order_mark(content);
    NIBBLE_TRY(opened.kind, data_file_kind(path.filename().string(), content, true));
    NIBBLE_TRY(opened.pieces, pieces_of(opened.kind, path, content, separator));
    return opened;
}

}  // namespace nibble
