#include "eval/data_files.h"

#include "base/fields.h"
#include "base/mapped_file.h"
#include "base/utf8.h"
#include "data/document_pieces.h"
#include "data/rows.h"
#include "data/source.h"
#include "io/journal.h"
#include "text/gzip.h"

#include <optional>

namespace nibble {
namespace {

constexpr size_t most_unpacked = size_t{1} << 30;

Result<std::string> content_of(const std::filesystem::path& path) {
    NIBBLE_TRY(std::string text, read_text_file(path));
    if (text.starts_with("\x1f\x8b")) {
        NIBBLE_TRY(Unpacked unpacked, gunzip(text, most_unpacked).within(path.string()));
        if (unpacked.cut) return fail("{}: unpacks to more than {} bytes", path.string(), most_unpacked);
        text = std::move(unpacked.text);
    }
    if (without_byte_order_mark(text).empty()) return fail("{}: is empty", path.string());
    return std::string(without_byte_order_mark(text));
}

// Returns the texts of a file of rows, with a blank line between them; nothing if the file has no rows.
Result<std::optional<std::string>> joined_rows(const std::filesystem::path& path) {
    std::optional<std::string> all;
    DocumentReader reader({path}, "");
    while (true) {
        NIBBLE_TRY(const auto row, reader.next());
        if (!row || !row->row) return all;
        const std::string where = fmt::format("{}: {} {}", path.string(), row->unit, row->number);
        NIBBLE_CHECK(check_utf8(row->text()).within(where));
        NIBBLE_TRY(const Json json, parse_json(row->text()).within(where));
        NIBBLE_TRY(const DataRow fields, data_row(json).within(where));
        if (fields.is_chat())
            return fail(
                "{}: is a conversation; perplexity is measured on texts: give rows with a 'text', or a plain text",
                where);
        if (all)
            *all += "\n\n";
        else
            all.emplace();
        *all += fields.prompt + fields.text;
        if (all->size() > most_unpacked)
            return fail("{}: has more than {} bytes of text", path.string(), most_unpacked);
    }
}

// Returns true if a file begins as a file of rows does. A plain text is not read further.
Result<bool> holds_rows(const std::filesystem::path& path) {
    NIBBLE_TRY(const MappedFile file, MappedFile::open(path));
    const std::string_view bytes(reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size());
    if (bytes.empty()) return false;
    if (bytes.starts_with("PAR1")) return true;  // without starting its reader
    NIBBLE_TRY(const OpenedPieces opened, open_pieces(path, bytes, ""));
    return opened.kind.rows();
}

}  // namespace

Result<TextFile> read_evaluation_text(const std::filesystem::path& path) {
    NIBBLE_TRY(const bool rows, holds_rows(path).within(path.string()));
    std::string text;
    if (rows) {
        NIBBLE_TRY(const auto joined, joined_rows(path));
        text = joined.value_or("");
        if (text.empty()) return fail("{}: is empty", path.string());
    } else {
        NIBBLE_TRY(text, content_of(path));
    }
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
