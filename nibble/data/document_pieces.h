// Reads the documents of one file, one after another, by its format.
#pragma once

#include "base/error.h"
#include "data/format.h"

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace nibble {

struct DocumentPiece {
    std::string owned;      // for files that are decompressed or converted
    std::string_view view;  // for other files: a part of the content

    std::string_view text() const { return view.data() ? view : std::string_view(owned); }
};

class DocumentPieces {
public:
    virtual ~DocumentPieces() = default;
    // Returns nothing at the end. Rows are returned as JSON objects.
    virtual Result<std::optional<DocumentPiece>> next() = 0;
};

struct OpenedPieces {
    DataFileKind kind;
    std::unique_ptr<DocumentPieces> pieces;
};

// `content` is the content of `path` and must outlive the pieces. separator: between documents of a text; empty: one
// document. Content compressed by gzip is decompressed: texts and lines piece by piece, other rows in memory up to 1
// GiB.
Result<OpenedPieces> open_pieces(const std::filesystem::path& path, std::string_view content,
                                 const std::string& separator);

}  // namespace nibble
