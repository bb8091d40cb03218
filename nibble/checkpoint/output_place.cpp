#include "checkpoint/output_place.h"

#include "checkpoint/work_folder.h"

#include <fcntl.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

namespace nibble {
namespace {

namespace fs = std::filesystem;

// Creates an unnamed file, because permissions do not show that a file system is read-only. On file systems without
// unnamed files (network file systems), creates a folder instead.
Status check_writable(const fs::path& folder, const fs::path& out) {
    const int file = ::open(folder.c_str(), O_TMPFILE | O_WRONLY | O_CLOEXEC, 0600);
    if (file >= 0) {
        ::close(file);
        return Ok{};
    }
    if (errno == EOPNOTSUPP || errno == EISDIR || errno == EINVAL) {
        std::string probe = (folder / ".nibble-probe-XXXXXX").string();
        if (::mkdtemp(probe.data())) {
            ::rmdir(probe.c_str());
            return Ok{};
        }
    }
    return fail(ErrorKind::file, "{}: cannot be written: {}: {}", out.string(), folder.string(), std::strerror(errno));
}

Status check_room(const fs::path& folder, const fs::path& out, int64_t bytes_needed) {
    struct statvfs info {};
    if (::statvfs(folder.c_str(), &info) != 0)
        return fail(ErrorKind::file, "{}: cannot examine its file system: {}", folder.string(), std::strerror(errno));
    const double available = static_cast<double>(info.f_bavail) * static_cast<double>(info.f_frsize);
    if (static_cast<double>(bytes_needed) <= available) return Ok{};
    return fail(ErrorKind::file,
                "{}: needs {}, but only {} are free on its file system; free some or choose another output",
                out.string(), size_text(bytes_needed), size_text(static_cast<int64_t>(available)));
}

// Returns the nearest existing folder above `path`, or `path` itself.
fs::path existing_part(fs::path path) {
    std::error_code ignored;
    while (!fs::exists(fs::symlink_status(path, ignored)) && path.has_relative_path()) path = path.parent_path();
    return path;
}

Status check_from(const fs::path& start, const fs::path& out, int64_t bytes_needed) {
    const fs::path folder = existing_part(start);
    std::error_code ignored;
    if (!fs::is_directory(folder, ignored))
        return fail(ErrorKind::file, "{}: cannot be written: {} is not a folder; choose another output", out.string(),
                    folder.string());
    NIBBLE_CHECK(check_writable(folder, out));
    return check_room(folder, out, bytes_needed);
}

}  // namespace

Status check_output_place(const fs::path& out, int64_t bytes_needed) {
    return check_from(fs::absolute(out).lexically_normal().parent_path(), out, bytes_needed);
}

Status check_output_folder(const fs::path& folder, int64_t bytes_needed) {
    return check_from(fs::absolute(folder).lexically_normal(), folder, bytes_needed);
}

Status check_output_file(const fs::path& file, int64_t bytes_needed) {
    const fs::path folder = fs::absolute(file).lexically_normal().parent_path();
    std::error_code ignored;
    if (fs::is_directory(file, ignored))
        return fail(ErrorKind::file, "{}: is a folder; give the name of a file", file.string());
    if (!fs::exists(folder, ignored))
        return fail(ErrorKind::file, "{}: there is no folder {}; make it or choose another output", file.string(),
                    folder.string());
    return check_from(folder, file, bytes_needed);
}

Status refuse_output_in_source(const std::filesystem::path& out, const std::filesystem::path& source) {
    std::error_code error;
    if (!fs::is_directory(source, error)) return Ok{};
    const fs::path folder = fs::canonical(source, error), place = fs::weakly_canonical(fs::absolute(out, error), error);
    if (error) return Ok{};  // opening the paths will report the problem
    const fs::path relative = place.lexically_relative(folder);
    if (relative.empty() || *relative.begin() == "..") return Ok{};
    return fail(
        ErrorKind::usage,
        "{}: is inside the source {}, and the next run would read it as part of the source; choose another output",
        out.string(), source.string());
}

}  // namespace nibble
