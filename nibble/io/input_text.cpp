#include "io/input_text.h"

#include "base/mapped_file.h"
#include "base/utf8.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace nibble {

Status for_each_line(const std::string& path, const std::function<Status(std::string_view line)>& take) {
    NIBBLE_TRY(const MappedFile file, MappedFile::open(path));
    const std::string_view bytes(reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size());
    std::string_view text = without_byte_order_mark(bytes);
    for (size_t number = 1; !text.empty(); ++number) {
        const std::string_view line = text.substr(0, text.find('\n'));
        text.remove_prefix(std::min(text.size(), line.size() + 1));
        if (line.size() > most_input_bytes)
            return fail("{}: line {}: longer than {} bytes", path, number, most_input_bytes);
        NIBBLE_CHECK(Status(take(line)).within(fmt::format("{}: line {}", path, number)));
    }
    return Ok{};
}

Result<std::string> read_standard_input(size_t limit, int descriptor) {
    constexpr size_t step = size_t{1} << 16;
    std::string text;
    for (;;) {
        const size_t old = text.size();
        text.resize(old + step);
        const ssize_t n = ::read(descriptor, text.data() + old, step);
        text.resize(old + static_cast<size_t>(std::max<ssize_t>(n, 0)));
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return fail("standard input cannot be read: {}", std::strerror(errno));
        if (n == 0) return text;
        if (text.size() > limit) return fail("standard input is longer than {} bytes", limit);
    }
}

}  // namespace nibble
