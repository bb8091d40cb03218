#include "io/atomic_file.h"

#include "io/file_descriptor.h"

#include <fcntl.h>

#include <cerrno>
#include <cstring>
#include <random>
#include <system_error>

namespace nibble {
namespace {

namespace fs = std::filesystem;

fs::path folder_of(const fs::path& path) { return path.has_parent_path() ? path.parent_path() : fs::path("."); }

// Makes a rename in the folder survive a power cut.
Status sync_folder(const fs::path& folder) {
    NIBBLE_TRY(auto fd, FileDescriptor::open(folder, O_RDONLY | O_DIRECTORY));
    return fd.sync();
}

Status write_and_close(FileDescriptor& file, Bytes bytes) {
    NIBBLE_CHECK(file.write_at(bytes, 0));
    NIBBLE_CHECK(file.sync());
    return file.close();
}

// A name in the folder of `path` that no other writer has. Not the process id: containers that share a disk repeat it.
fs::path temporary_name(const fs::path& path) {
    std::random_device random;
    return folder_of(path) / fmt::format(".{}.{:08x}{:08x}.tmp", path.filename().string(), random(), random());
}

bool is_temporary_name(std::string_view name) {
    constexpr std::string_view end = ".tmp";
    constexpr size_t digits = 16;
    if (!name.starts_with('.') || !name.ends_with(end) || name.size() < digits + end.size() + 3) return false;
    name.remove_suffix(end.size());
    const std::string_view random = name.substr(name.size() - digits);
    return random.find_first_not_of("0123456789abcdef") == random.npos && name[name.size() - digits - 1] == '.';
}

}  // namespace

void remove_abandoned_files(const fs::path& folder) {
    std::error_code error;
    for (fs::recursive_directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
        std::error_code failed;
        if (is_temporary_name(it->path().filename().string())) fs::remove(it->path(), failed);
    }
}

Status write_file_atomically(const fs::path& path, Bytes bytes) {
    const fs::path temporary = temporary_name(path);
    NIBBLE_TRY(auto file, FileDescriptor::open(temporary, O_WRONLY | O_CREAT | O_EXCL));
    Status done = write_and_close(file, bytes);
    if (done.ok()) done = rename_durably(temporary, path);
    if (!done.ok()) {
        std::error_code ignored;
        fs::remove(temporary, ignored);
    }
    return done;
}

Status write_file_atomically(const fs::path& path, std::string_view text) {
    return write_file_atomically(path, std::as_bytes(std::span(text)));
}

Status rename_durably(const fs::path& from, const fs::path& to) {
    if (::rename(from.c_str(), to.c_str()) != 0)
        return fail("{}: cannot rename to {}: {}", from.string(), to.string(), std::strerror(errno));
    NIBBLE_CHECK(sync_folder(folder_of(to)));
    if (folder_of(from) != folder_of(to)) NIBBLE_CHECK(sync_folder(folder_of(from)));
    return Ok{};
}

}  // namespace nibble
