// What a data file holds, by its content: the name of a file decides only where the content says nothing.
#pragma once

#include "base/error.h"

#include <string>
#include <string_view>

namespace nibble {

enum class DataFormat : uint8_t {
    text,    // one document, or several between separators
    lines,   // a JSON object a line
    array,   // a JSON list of objects
    object,  // one JSON object over several lines: a row, or rows under a key such as "data"
    csv,     // a line of names, then a record a row; `separator` between fields
    parquet,
};

struct DataFileKind {
    DataFormat format = DataFormat::text;
    char separator = ',';  // of csv
    bool rows() const { return format != DataFormat::text; }
};

// `name`: without the ending of a compression. `head`: the beginning of the content, all of it if `whole`. Errors:
// files that are neither text nor rows, with the next step (zip, zstd, Arrow and others by their first bytes; a .json
// file that holds no rows).
Result<DataFileKind> data_file_kind(std::string_view name, std::string_view head, bool whole);

}  // namespace nibble
