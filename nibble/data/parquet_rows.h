// Reads the rows of a Parquet file as JSON through pyarrow: an installed Python is started for the file. libparquet,
// which pyarrow contains, has no stable interface without its headers.
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
    // Reads those columns of the file that are in `keys`. next() reports errors: no python3; no pyarrow (one line that
    // names it); a damaged file; none of the columns (the message lists the existing names).
    static Result<ParquetRows> open(const std::filesystem::path& file, std::span<const std::string_view> keys);
    ParquetRows(ParquetRows&& other) noexcept;
    ParquetRows& operator=(ParquetRows&& other) noexcept;
    ~ParquetRows();  // ends the reader

    // Returns a row as a JSON object on one line, or nothing at the end.
    Result<std::optional<std::string>> next();

private:
    ParquetRows(pid_t reader, int pipe) : reader_(reader), pipe_(pipe) {}
    Result<bool> fill();  // false: end of the data
    Status finish();

    pid_t reader_ = -1;
    int pipe_ = -1;
    std::string buffer_;
    size_t begin_ = 0;
};

}  // namespace nibble
