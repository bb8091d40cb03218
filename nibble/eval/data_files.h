// Reads files with texts and items. Errors name file and line.
#pragma once

#include "base/json.h"

#include <filesystem>
#include <string>
#include <vector>

namespace nibble {

struct TextFile {
    std::string name;  // last component of the path
    std::string text;  // UTF-8
    std::string hash;
};
// A plain text, or a file of rows with texts (data/rows.h), which are joined by blank lines. Either may be packed by
// gzip. Errors: empty, not UTF-8 (with the byte position), a row that is a conversation, over 1 GiB.
Result<TextFile> read_evaluation_text(const std::filesystem::path& path);

struct LinesFile {
    std::string name, hash;
    std::vector<Json> lines;  // objects
};
// Reads at most `limit` objects, one per line (0: all), also of a file packed by gzip. Errors: no lines, a line that is
// not a JSON object, more than 1 GiB.
Result<LinesFile> read_lines_file(const std::filesystem::path& path, int64_t limit);

// Returns a string field of a line. Error: missing, or not a string.
Result<std::string> text_field(const Json& line, const char* key);

}  // namespace nibble
