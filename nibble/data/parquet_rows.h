// Rows of a Parquet file, as JSON. pyarrow reads it: an installed Python is started when such a file is opened, because
// libparquet, which pyarrow contains, has no interface that is stable without its headers.
#pragma once

#include "base/error.h"

#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include <sys/types.h>

namespace nibble {

class ParquetRows {
public:
    // Of the file's columns, those in `keys`. Errors come from next(): no python3, no pyarrow (one line that names it),
    // a damaged file, none of the columns (with the names of those that are there).
    static Result<ParquetRows> open(const std::filesystem::path& file, std::span<const std::string_view> keys);
    ParquetRows(ParquetRows&& other) noexcept;
    ParquetRows& operator=(ParquetRows&& other) noexcept;
    ~ParquetRows();  // ends the reader

    // A row as a JSON object on one line; nothing at the end.
    Result<std::optional<std::string>> next();

private:
    ParquetRows(pid_t reader, int pipe) : reader_(reader), pipe_(pipe) {}
    Result<bool> fill();  // false: the end
    Status finish();

    pid_t reader_ = -1;
    int pipe_ = -1;
    std::string buffer_;
    size_t begin_ = 0;
};

}  // namespace nibble
