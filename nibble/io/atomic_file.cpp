#include "io/atomic_file.h"

#include "io/file_descriptor.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <random>
#include <system_error>

namespace nibble {
namespace {

namespace fs = std::filesystem;

fs::path folder_of(const fs::path& path) { return path.has_parent_path() ? path.parent_path() : fs::path("."); }

// Syncs the folder, so that a rename survives a power cut.
Status sync_folder(const fs::path& folder) {
    NIBBLE_TRY(auto fd, FileDescriptor::open(folder, O_RDONLY | O_DIRECTORY));
    return fd.sync();
}

Status write_and_sync(const FileDescriptor& file, Bytes bytes) {
    NIBBLE_CHECK(file.write_at(bytes, 0));
    return file.sync();
}

// Returns a name in the folder of `path` that no other writer uses. It is random, because containers that share a disk
// may have equal process ids.
fs::path temporary_name(const fs::path& path) {
    std::random_device random;
    return folder_of(path) / fmt::format(".{}.{:08x}{:08x}.tmp", path.filename().string(), random(), random());
}

// Returns the name of the file for which temporary_name() made `name`; empty: `name` is not such a name.
std::string_view target_of(std::string_view name) {
    constexpr std::string_view end = ".tmp";
    constexpr size_t digits = 16;
    if (!name.starts_with('.') || !name.ends_with(end) || name.size() < digits + end.size() + 3) return {};
    name.remove_suffix(end.size());
    const std::string_view random = name.substr(name.size() - digits);
    if (random.find_first_not_of("0123456789abcdef") != random.npos || name[name.size() - digits - 1] != '.') return {};
    return name.substr(1, name.size() - digits - 2);
}

// Removes temporary files that killed writers of the same file left. A living writer holds a lock on its file.
void remove_abandoned_siblings(const fs::path& path) {
    std::error_code error;
    const std::string name = path.filename().string();
    for (fs::directory_iterator it(folder_of(path), error), end; !error && it != end; it.increment(error)) {
        if (target_of(it->path().filename().string()) != name) continue;
        const auto file = FileDescriptor::open(it->path(), O_RDWR | O_NOFOLLOW | O_NONBLOCK);
        if (file.ok() && ::flock(file->number(), LOCK_EX | LOCK_NB) == 0) ::unlink(it->path().c_str());
    }
}

// Creates a locked temporary file. Another process may have removed it as abandoned before it was locked, so this is
// repeated.
Result<FileDescriptor> new_temporary(const fs::path& path, fs::path& temporary) {
    for (;;) {
        temporary = temporary_name(path);
        NIBBLE_TRY(auto file, FileDescriptor::open(temporary, O_WRONLY | O_CREAT | O_EXCL));
        struct stat info {};
        // On file systems without locks, no process removes abandoned files.
        if (::flock(file.number(), LOCK_EX) != 0 || ::fstat(file.number(), &info) != 0 || info.st_nlink > 0)
            return file;
    }
}

}  // namespace

void remove_abandoned_files(const fs::path& folder) {
    std::error_code error;
    for (fs::recursive_directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
        std::error_code failed;
        if (!target_of(it->path().filename().string()).empty()) fs::remove(it->path(), failed);
    }
}

Status write_file_atomically(const fs::path& path, Bytes bytes) {
    remove_abandoned_siblings(path);
    fs::path temporary;
    NIBBLE_TRY(auto file, new_temporary(path, temporary));
    Status done = write_and_sync(file, bytes);
    if (done.ok()) done = rename_durably(temporary, path);
    if (Status closed = file.close(); done.ok()) done = std::move(closed);
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
        return fail(ErrorKind::file, "{}: cannot rename to {}: {}", from.string(), to.string(), std::strerror(errno));
    NIBBLE_CHECK(sync_folder(folder_of(to)));
    if (folder_of(from) != folder_of(to)) NIBBLE_CHECK(sync_folder(folder_of(from)));
    return Ok{};
}

}  // namespace nibble
