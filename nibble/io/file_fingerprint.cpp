#include "io/file_fingerprint.h"

#include "io/file_descriptor.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <vector>

namespace nibble {

Result<std::string> file_fingerprint(const std::filesystem::path& path) {
    constexpr int64_t first = int64_t{64} << 10, part = 4096, parts = 63;
    struct stat info {};
    NIBBLE_TRY(const auto file, FileDescriptor::open(path, O_RDONLY | O_NONBLOCK));
    if (::fstat(file.number(), &info) != 0)
        return fail(ErrorKind::file, "{}: cannot stat: {}", path.string(), std::strerror(errno));
    if (!S_ISREG(info.st_mode)) return fail(ErrorKind::file, "{}: not a regular file", path.string());
    const auto size = static_cast<int64_t>(info.st_size);
    uint64_t sum = 0;
    std::vector<std::byte> buffer(static_cast<size_t>(std::min(first, size)));
    const auto add = [&](int64_t offset, int64_t bytes) -> Status {
        const auto here = std::span(buffer).first(static_cast<size_t>(bytes));
        NIBBLE_CHECK(file.read_at(here, offset));
        sum = XXH3_64bits_withSeed(here.data(), here.size(), sum);
        return Ok{};
    };
    NIBBLE_CHECK(add(0, std::ssize(buffer)));
    const int64_t rest = size - first;
    if (rest > 0 && rest <= parts * part) {
        for (int64_t at = first; at < size; at += part) NIBBLE_CHECK(add(at, std::min(part, size - at)));
    } else if (rest > 0) {
        const int64_t last = size - part;  // no overflow: sizes have 63 bits, and the division comes before the
                                           // multiplication
        const int64_t step = (last - first) / (parts - 1);
        for (int64_t i = 0; i < parts - 1; ++i) NIBBLE_CHECK(add(first + i * step, part));
        NIBBLE_CHECK(add(last, part));
    }
    return fmt::format("{} bytes of {}.{:09}, sample {:016x}", size, info.st_mtim.tv_sec, info.st_mtim.tv_nsec, sum);
}

}  // namespace nibble
