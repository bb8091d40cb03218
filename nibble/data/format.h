// Detects the format of a data file from its content. The file name decides only if the content does not.
#pragma once

#include "base/error.h"

#include <string>
#include <string_view>

namespace nibble {

enum class DataFormat : uint8_t {
    text,    // one document, or several with separators
    lines,   // one JSON object per line
    array,   // a JSON list of objects
    object,  // one JSON object over several lines: a row, or rows under a key such as "data"
    csv,     // a line of names, then one record per row; `separator` between fields
    parquet,
};

struct DataFileKind {
    DataFormat format = DataFormat::text;
    char separator = ',';  // for csv
    bool rows() const { return format != DataFormat::text; }
};

// `name`: without the extension of a compression. `head`: the beginning of the content, all of it if `whole`. Error
// (with advice): a file that has neither text nor rows, such as zip, zstd or Arrow (detected by their first bytes), or
// a .json file without rows.
Result<DataFileKind> data_file_kind(std::string_view name, std::string_view head, bool whole);

}  // namespace nibble
