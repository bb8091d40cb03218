// Documents of files, one after the other, in the order of the files: a line of *.jsonl, a whole text of any other
// file, or its pieces between separators. *.gz is unpacked as it is read. A byte order mark in front of a file is left out.
// Nothing is parsed here.
#pragma once

#include "base/mapped_file.h"
#include "text/gzip.h"

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace nibble {

struct RawDocument {
    std::string owned;      // of packed files
    std::string_view view;  // of others: lives as long as the reader
    size_t source = 0;      // which file
    int64_t number = 0;     // of the line, or of the piece, from 1
    bool json = false;      // a line of *.jsonl

    std::string_view text() const { return view.data() ? view : std::string_view(owned); }
};

// Files as they are; of folders, all *.txt, *.md, *.jsonl and their *.gz below, sorted. Errors: no such file, a folder
// without any.
Result<std::vector<std::filesystem::path>> find_text_files(const std::vector<std::filesystem::path>& inputs);

class DocumentReader {
public:
    // separator: between the documents of plain texts; empty: each file is one document.
    DocumentReader(std::vector<std::filesystem::path> files, std::string separator)
        : files_(std::move(files)), separator_(std::move(separator)) {}

    // Empty at the end. Lines of white space and empty pieces are left out. Errors name the file: empty, no text, a
    // Parquet file, a line over 256 MiB, damaged gzip data.
    Result<std::optional<RawDocument>> next();

    const std::vector<std::filesystem::path>& files() const { return files_; }
    int64_t bytes_read() const { return bytes_read_; }  // of files that are behind

private:
    Status open_next();
    Result<std::optional<RawDocument>> next_view();
    Result<std::optional<RawDocument>> next_unpacked();

    std::vector<std::filesystem::path> files_;
    std::string separator_;
    size_t opened_ = 0;  // files so far; the current one is opened_ - 1
    bool open_ = false, json_ = false;
    int64_t number_ = 0, bytes_read_ = 0;
    std::vector<MappedFile> maps_;  // all of them: views point into them
    std::string_view rest_;         // of a plain file
    std::optional<GunzipStream> packed_;
    std::string buffer_;  // of a packed one
    size_t begin_ = 0;    // of the next piece in the buffer
};

}  // namespace nibble
