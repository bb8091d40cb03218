#include "data/format.h"

#include "base/json.h"
#include "data/rows.h"
#include "data/table.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <optional>

namespace nibble {
namespace {

struct Magic {
    std::string_view bytes, what, next_step;
};

constexpr std::string_view write_rows = "write its rows as .jsonl";
using std::string_view_literals::operator""sv;
constexpr Magic other_formats[] = {
    {"\x28\xB5\x2F\xFD"sv, "is compressed by zstd", "decompress it: zstd -d"},
    {"PK\x03\x04"sv, "is a zip archive", "unpack it"},
    {"\xFD\x37zXZ"sv, "is compressed by xz", "decompress it: xz -d"},
    {"BZh"sv, "is compressed by bzip2", "decompress it: bzip2 -d"},
    {"ARROW1"sv, "is an Arrow file", write_rows},
    {"\xFF\xFF\xFF\xFF"sv, "is an Arrow stream", write_rows},
    {"\x89HDF"sv, "is an HDF5 file", write_rows},
    {"SQLite format 3"sv, "is an SQLite database", write_rows},
    {"ORC"sv, "is an ORC file", write_rows},
    {"Obj\x01"sv, "is an Avro file", write_rows},
    {"%PDF-"sv, "is a PDF document", "extract its text"},
};

std::string_view trimmed(std::string_view text) {
    const size_t begin = text.find_first_not_of(" \t\r\n");
    return begin == text.npos ? std::string_view() : text.substr(begin);
}

std::string_view first_line(std::string_view text) { return text.substr(0, text.find('\n')); }

bool is_object(std::string_view text) {
    const auto json = parse_json(text);
    return json.ok() && json->is_object();
}

// Returns the format of content that begins like JSON, or nothing.
std::optional<DataFormat> json_format(std::string_view head, bool whole) {
    const std::string_view text = trimmed(head);
    const auto opens_object = [](std::string_view at) {
        if (!at.starts_with('{')) return false;
        const std::string_view inside = trimmed(at.substr(1));
        return inside.starts_with('"') || inside.starts_with('}');
    };
    if (text.starts_with('[') && opens_object(trimmed(text.substr(1)))) return DataFormat::array;
    if (!opens_object(text)) return {};
    const std::string_view line = first_line(text);
    if (is_object(line)) return DataFormat::lines;
    if (line.size() == text.size() && !whole) return DataFormat::lines;  // the line is longer than `head`
    if (!whole || is_object(text)) return DataFormat::object;
    return {};
}

// Returns the separator if the first line has the names of a known kind of row. Other texts do not begin like that.
std::optional<char> separator_of_rows(std::string_view head) {
    for (const char separator : {',', '\t', ';'}) {
        std::string_view rest = head;
        const auto names = next_record(rest, separator);
        if (!names.ok() || !names->has_value() || (*names)->size() < 2) continue;
        const auto is_name = [](const std::string& name) {
            return !name.empty() && name.size() < 64 && std::ranges::all_of(name, [](unsigned char c) {
                return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
            });
        };
        if (!std::ranges::all_of(**names, is_name) || !is_known_row(**names)) continue;
        const auto record = next_record(rest, separator);
        if (!record.ok() || !record->has_value() || (*record)->size() == (*names)->size()) return separator;
    }
    return {};
}

char separator_of_table(std::string_view name, std::string_view head) {
    if (name.ends_with(".tsv")) return '\t';
    if (const auto found = separator_of_rows(head)) return *found;
    const std::string_view line = first_line(head);
    constexpr std::array separators{',', ';', '\t'};
    return *std::ranges::max_element(separators, {}, [&](char c) { return std::ranges::count(line, c); });
}

}  // namespace

Result<DataFileKind> data_file_kind(std::string_view name, std::string_view head, bool whole) {
    if (head.starts_with("PAR1")) return DataFileKind{DataFormat::parquet};
    for (const Magic& m : other_formats)
        if (head.starts_with(m.bytes)) return fail("{}, which is not supported; {}", m.what, m.next_step);
    const std::string ending = std::filesystem::path(name).extension().string();
    if (ending == ".parquet") return fail("does not begin like a Parquet file");
    if (ending == ".csv" || ending == ".tsv") return DataFileKind{DataFormat::csv, separator_of_table(name, head)};
    if (const auto json = json_format(head, whole)) return DataFileKind{*json};
    if (ending == ".jsonl" || ending == ".ndjson") return DataFileKind{DataFormat::lines};
    if (ending == ".json")
        return fail(
            "is neither a list of JSON objects, nor one object, nor one object per line; a .txt file is read as text");
    if (const auto separator = separator_of_rows(head)) return DataFileKind{DataFormat::csv, *separator};
    return DataFileKind{};
}

}  // namespace nibble
