// Documents of files, one after the other, in the order of the files: a row of a file of rows (JSON lines, a JSON list,
// CSV, Parquet; data/format.h), a whole text of any other file, or its pieces between separators. What a file
// holds is seen by its content. Files packed by gzip are unpacked as they are read. A byte order mark in front of a
// file is left out. Nothing is parsed here.
#pragma once

#include "base/mapped_file.h"
#include "data/document_pieces.h"

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace nibble {

struct RawDocument {
    DocumentPiece piece;    // its view lives as long as the reader
    size_t source = 0;      // which file
    int64_t number = 0;     // in its file, from 1
    bool row = false;       // a JSON object
    const char* unit = "";  // "line", "row" or "document": what `number` counts

    std::string_view text() const { return piece.text(); }
};

// Files as they are; of folders, all files below whose names end in .txt, .md, .jsonl, .ndjson, .json, .csv, .tsv or
// .parquet, and their .gz, sorted. Errors: no such file, a folder without any.
Result<std::vector<std::filesystem::path>> find_text_files(const std::vector<std::filesystem::path>& inputs);

class DocumentReader {
public:
    // separator: between the documents of plain texts; empty: each file is one document.
    DocumentReader(std::vector<std::filesystem::path> files, std::string separator)
        : files_(std::move(files)), separator_(std::move(separator)) {}

    // Empty at the end. Rows of white space and empty pieces are left out. Errors name the file, and the row: empty,
    // not of a known format, a row over 256 MiB, damaged gzip data.
    Result<std::optional<RawDocument>> next();

    const std::vector<std::filesystem::path>& files() const { return files_; }
    int64_t bytes_read() const { return bytes_read_; }  // of files that are read to their end

private:
    Status open_next();

    std::vector<std::filesystem::path> files_;
    std::string separator_;
    size_t opened_ = 0;  // files so far; the current one is opened_ - 1
    int64_t number_ = 0, bytes_read_ = 0;
    std::vector<MappedFile> maps_;  // all of them: views point into them
    OpenedPieces current_;
};

}  // namespace nibble
