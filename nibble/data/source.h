// Reads the documents of files, one after another, in the order of the files: each row of a file of rows (JSON Lines, a
// JSON list, CSV, Parquet; data/format.h), the whole text of any other file, or its pieces between separators. The
// content decides the format. Files compressed by gzip are decompressed while they are read. A byte order mark at the
// beginning is removed. Rows are not parsed here.
#pragma once

#include "base/mapped_file.h"
#include "data/document_pieces.h"

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace nibble {

struct RawDocument {
    DocumentPiece piece;    // its view is valid while the reader exists
    size_t source = 0;      // index of the file
    int64_t number = 0;     // number in its file, from 1
    bool row = false;       // a JSON object
    const char* unit = "";  // unit of `number`: "line", "row" or "document"

    std::string_view text() const { return piece.text(); }
};

// Returns the given files, and for folders all files below with names in .txt, .md, .jsonl, .ndjson, .json, .csv, .tsv
// or .parquet and their .gz, sorted. Errors: a file does not exist; a folder has no such file.
Result<std::vector<std::filesystem::path>> find_text_files(const std::vector<std::filesystem::path>& inputs);

class DocumentReader {
public:
    // separator: between documents in plain text files; empty: each file is one document.
    DocumentReader(std::vector<std::filesystem::path> files, std::string separator)
        : files_(std::move(files)), separator_(std::move(separator)) {}

    // Returns nothing at the end. Rows of white space and empty pieces are skipped. Errors name the file and the row:
    // an empty file, an unknown format, a row over 256 MiB, damaged gzip data.
    Result<std::optional<RawDocument>> next();

    const std::vector<std::filesystem::path>& files() const { return files_; }
    int64_t bytes_read() const { return bytes_read_; }  // bytes of files that were read to their end

private:
    Status open_next();

    std::vector<std::filesystem::path> files_;
    std::string separator_;
    size_t opened_ = 0;  // number of files so far; the current one is opened_ - 1
    int64_t number_ = 0, bytes_read_ = 0;
    std::vector<MappedFile> maps_;  // kept for all files, because views point into them
    OpenedPieces current_;
};

}  // namespace nibble
