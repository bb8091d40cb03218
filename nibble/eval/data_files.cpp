#include "eval/data_files.h"

#include "base/fields.h"
#include "base/mapped_file.h"
#include "base/utf8.h"
#include "io/journal.h"

namespace nibble {
namespace {

Result<std::string> content_of(const std::filesystem::path& path) {
    NIBBLE_TRY(std::string text, read_text_file(path));
    if (without_byte_order_mark(text).empty()) return fail("{}: is empty", path.string());
    if (text.starts_with("\x1f\x8b")) return fail("{}: is compressed; unpack it with gunzip first", path.string());
    return std::string(without_byte_order_mark(text));
}

}  // namespace

Result<TextFile> read_evaluation_text(const std::filesystem::path& path) {
    NIBBLE_TRY(std::string text, content_of(path));
    NIBBLE_CHECK(check_utf8(text).within(path.string()));
    std::string hash = hash_text(text);
    return TextFile{path.filename().string(), std::move(text), std::move(hash)};
}

Result<LinesFile> read_lines_file(const std::filesystem::path& path, int64_t limit) {
    NIBBLE_TRY(const std::string text, content_of(path));
    LinesFile file{path.filename().string(), hash_text(text), {}};
    std::string_view rest = text;
    for (int64_t number = 1; !rest.empty() && (limit == 0 || std::ssize(file.lines) < limit); ++number) {
        const std::string_view line = rest.substr(0, rest.find('\n'));
        rest.remove_prefix(std::min(rest.size(), line.size() + 1));
        if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
        const std::string where = fmt::format("{}: line {}", path.string(), number);
        NIBBLE_TRY(Json json, parse_json(line).within(where));
        if (!json.is_object()) return fail("{}: is not an object", where);
        file.lines.push_back(std::move(json));
    }
    if (file.lines.empty()) return fail("{}: has no items", path.string());
    return file;
}

Result<std::string> text_field(const Json& line, const char* key) {
    std::string text;
    NIBBLE_CHECK(Fields(line).need(key, text));
    return text;
}

}  // namespace nibble
