#include "io/zip.h"

#include "io/json_events.h"

#include <algorithm>
#include <cstring>

namespace nibble {
namespace {

constexpr uint32_t end_mark = 0x06054b50, end64_mark = 0x06064b50, locator_mark = 0x07064b50, entry_mark = 0x02014b50,
                   file_mark = 0x04034b50;
constexpr size_t end_bytes = 22, locator_bytes = 20, end64_bytes = 56, entry_bytes = 46, file_bytes = 30;

template <class T>
T number_at(Bytes bytes, size_t at) {
    T value;
    std::memcpy(&value, bytes.data() + at, sizeof value);
    return value;
}

// Returns `size` bytes from `at` on.
Result<Bytes> part_of(Bytes bytes, uint64_t at, uint64_t size) {
    if (at > bytes.size() || size > bytes.size() - at) return fail("the archive is cut short or damaged");
    return bytes.subspan(static_cast<size_t>(at), static_cast<size_t>(size));
}

struct Directory {
    uint64_t entries = 0, offset = 0, size = 0;
};

Result<Directory> find_directory(Bytes bytes) {
    constexpr size_t longest_comment = 0xFFFF;
    if (bytes.size() < end_bytes) return fail("not a ZIP archive");
    const size_t last = bytes.size() - end_bytes, first = last - std::min(last, longest_comment);
    size_t at = last + 1;
    while (at > first && number_at<uint32_t>(bytes, at - 1) != end_mark) --at;
    if (at == first) return fail("not a ZIP archive");
    --at;
    Directory d{number_at<uint16_t>(bytes, at + 10), number_at<uint32_t>(bytes, at + 16),
                number_at<uint32_t>(bytes, at + 12)};
    if (at < locator_bytes || number_at<uint32_t>(bytes, at - locator_bytes) != locator_mark) return d;
    NIBBLE_TRY(const Bytes end,
               part_of(bytes, number_at<uint64_t>(bytes, at - locator_bytes + 8), uint64_t{end64_bytes}));
    if (number_at<uint32_t>(end, 0) != end64_mark) return fail("the archive is cut short or damaged");
    return Directory{number_at<uint64_t>(end, 32), number_at<uint64_t>(end, 48), number_at<uint64_t>(end, 40)};
}

struct Sizes {
    uint64_t packed, size, offset;
};

// Replaces the values that do not fit 32 bits by those of the ZIP64 record.
Status read_wide_sizes(Bytes extra, Sizes& s) {
    while (extra.size() >= 4) {
        const auto id = number_at<uint16_t>(extra, 0), size = number_at<uint16_t>(extra, 2);
        NIBBLE_TRY(Bytes record, part_of(extra, 4, size));
        if (id == 1)
            for (uint64_t* value : {&s.size, &s.packed, &s.offset}) {
                if (*value != 0xFFFFFFFF) continue;
                if (record.size() < 8) return fail("the archive is cut short or damaged");
                *value = number_at<uint64_t>(record, 0);
                record = record.subspan(8);
            }
        extra = extra.subspan(4 + size_t{size});
    }
    return Ok{};
}

}  // namespace

Result<std::vector<ZipEntry>> list_zip(Bytes bytes) {
    NIBBLE_TRY(const Directory directory, find_directory(bytes));
    NIBBLE_TRY(Bytes rest, part_of(bytes, directory.offset, directory.size));
    std::vector<ZipEntry> entries;
    for (uint64_t i = 0; i < directory.entries; ++i) {
        NIBBLE_TRY(const Bytes head, part_of(rest, 0, entry_bytes));
        if (number_at<uint32_t>(head, 0) != entry_mark) return fail("the archive is cut short or damaged");
        const auto flags = number_at<uint16_t>(head, 8), method = number_at<uint16_t>(head, 10);
        Sizes s{number_at<uint32_t>(head, 20), number_at<uint32_t>(head, 24), number_at<uint32_t>(head, 42)};
        const size_t name_bytes = number_at<uint16_t>(head, 28), extra_bytes = number_at<uint16_t>(head, 30),
                     all = entry_bytes + name_bytes + extra_bytes + number_at<uint16_t>(head, 32);
        NIBBLE_TRY(const Bytes whole, part_of(rest, 0, all));
        NIBBLE_CHECK(read_wide_sizes(whole.subspan(entry_bytes + name_bytes, extra_bytes), s));
        ZipEntry entry{.name = {reinterpret_cast<const char*>(whole.data()) + entry_bytes, name_bytes}, .data = {}};
        if (method != 0 || (flags & 1u) || s.packed != s.size)
            return fail("{}: is compressed or encrypted", show_name(entry.name));
        NIBBLE_TRY(const Bytes file, part_of(bytes, s.offset, file_bytes));
        if (number_at<uint32_t>(file, 0) != file_mark) return fail("the archive is cut short or damaged");
        const uint64_t skip = file_bytes + uint64_t{number_at<uint16_t>(file, 26)} + number_at<uint16_t>(file, 28);
        NIBBLE_TRY(const Bytes tail, part_of(bytes, s.offset, skip));
        static_cast<void>(tail);
        NIBBLE_TRY(entry.data, part_of(bytes, s.offset + skip, s.size).within(show_name(entry.name)));
        entries.push_back(entry);
        rest = rest.subspan(all);
    }
    return entries;
}

}  // namespace nibble
