// The documents of one file, one after the other, by its format.
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
    std::string owned;      // of files that are unpacked or converted
    std::string_view view;  // of others: into the content

    std::string_view text() const { return view.data() ? view : std::string_view(owned); }
};

class DocumentPieces {
public:
    virtual ~DocumentPieces() = default;
    // Nothing at the end. Rows come as JSON objects.
    virtual Result<std::optional<DocumentPiece>> next() = 0;
};

struct OpenedPieces {
    DataFileKind kind;
    std::unique_ptr<DocumentPieces> pieces;
};

// `content` is that of `path` and outlives the pieces. separator: between documents of a text; empty: it is one.
// Contents that are packed by gzip are unpacked: texts and lines piece by piece, other rows in memory up to 1 GiB.
Result<OpenedPieces> open_pieces(const std::filesystem::path& path, std::string_view content,
                                 const std::string& separator);

}  // namespace nibble
