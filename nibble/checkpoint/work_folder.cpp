#include "checkpoint/work_folder.h"

#include "io/atomic_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

namespace nibble {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view lock_name = ".nibble-lock";

// "out/" and "out" are the same place.
fs::path without_slash(const fs::path& path) {
    const fs::path normal = path.lexically_normal();
    return normal.has_filename() ? normal : normal.parent_path();
}

Status check_output_is_free(const fs::path& out) {
    std::error_code error;
    const auto status = fs::symlink_status(out, error);
    if (!fs::exists(status)) return Ok{};
    if (fs::is_directory(status) && fs::is_empty(out, error) && !error) return Ok{};
    return fail("{}: exists already; remove it or choose another output", out.string());
}

Status check_free_space(const fs::path& out, int64_t bytes_needed) {
    fs::path existing = fs::absolute(out).parent_path();
    std::error_code error;
    while (!fs::exists(existing, error) && existing.has_relative_path()) existing = existing.parent_path();
    struct statvfs info {};
    if (::statvfs(existing.c_str(), &info) != 0)
        return fail("{}: cannot look at its file system: {}", existing.string(), std::strerror(errno));
    const double available = static_cast<double>(info.f_bavail) * static_cast<double>(info.f_frsize);
    if (static_cast<double>(bytes_needed) <= available) return Ok{};
    return fail("{}: needs {}, but only {} are free on its file system; free some or choose another output",
                out.string(), size_text(bytes_needed), size_text(static_cast<int64_t>(available)));
}

void remove_job_files(const fs::path& folder) {
    std::error_code ignored;
    for (fs::directory_iterator it(folder, ignored), end; !ignored && it != end; it.increment(ignored)) {
        std::error_code failed;
        if (it->path().filename().string().starts_with(job_file_prefix)) fs::remove(it->path(), failed);
    }
}

}  // namespace

std::string size_text(int64_t bytes) {
    constexpr std::array<std::string_view, 6> units{"bytes", "kB", "MB", "GB", "TB", "PB"};
    double value = static_cast<double>(bytes);
    size_t unit = 0;
    while (value >= 1000 && unit + 1 < units.size()) {
        value /= 1000;
        ++unit;
    }
    return unit == 0 ? fmt::format("{} bytes", bytes) : fmt::format("{:.1f} {}", value, units[unit]);
}

Result<WorkFolder::Lock> WorkFolder::Lock::take(const fs::path& folder) {
    const fs::path path = folder / lock_name;
    Lock lock;
    lock.fd_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
    if (lock.fd_ < 0) return fail("{}: cannot open: {}", path.string(), std::strerror(errno));
    if (::flock(lock.fd_, LOCK_EX | LOCK_NB) == 0) {
        const std::string id = fmt::format("{}\n", ::getpid());  // for the message below only
        if (::ftruncate(lock.fd_, 0) == 0 && ::pwrite(lock.fd_, id.data(), id.size(), 0) < 0)
            return fail("{}: cannot write: {}", path.string(), std::strerror(errno));
        return lock;
    }
    if (errno != EWOULDBLOCK) return fail("{}: cannot lock: {}", path.string(), std::strerror(errno));
    std::array<char, 32> text{};
    const ssize_t n = ::pread(lock.fd_, text.data(), text.size(), 0);
    std::string holder(text.data(), n > 0 ? static_cast<size_t>(n) : 0);
    while (!holder.empty() && (holder.back() < '0' || holder.back() > '9')) holder.pop_back();
    return fail("{}: another process{} is writing it; wait for it or stop it", folder.string(),
                holder.empty() ? "" : fmt::format(" ({})", holder));
}

WorkFolder::Lock::~Lock() {
    if (fd_ >= 0) ::close(fd_);
}

Result<WorkFolder> WorkFolder::open(const fs::path& out, ExportMode mode, int64_t bytes_needed) {
    WorkFolder work;
    work.out_ = without_slash(out);
    if (!work.out_.has_filename()) return fail("'{}': is not a name for an output", out.string());
    work.path_ = work.out_;
    work.path_ += ".partial";
    NIBBLE_CHECK(check_output_is_free(work.out_));

    std::error_code error;
    const bool partial = fs::is_directory(work.path_, error);
    if (mode == ExportMode::resume) {
        if (!partial) return fail("{}: nothing to resume: there is no such folder", work.path_.string());
        NIBBLE_TRY(work.lock_, Lock::take(work.path_));
        remove_abandoned_files(work.path_);
        return work;
    }
    if (partial) {
        NIBBLE_TRY(const auto unused, Lock::take(work.path_));  // says so when somebody works in it
        static_cast<void>(unused);
        return fail("{}: is left from an interrupted job; resume it or remove the folder", work.path_.string());
    }
    NIBBLE_CHECK(check_free_space(work.out_, bytes_needed));
    error.clear();  // is_directory above says "no such file"
    if (work.path_.has_parent_path()) fs::create_directories(work.path_.parent_path(), error);
    if (error) return fail("{}: cannot make its folder: {}", work.path_.string(), error.message());
    if (!fs::create_directory(work.path_, error))
        return fail("{}: cannot create: {}", work.path_.string(), error ? error.message() : "exists already");
    NIBBLE_TRY(work.lock_, Lock::take(work.path_));
    return work;
}

Status WorkFolder::publish() {
    NIBBLE_CHECK(check_output_is_free(out_));
    NIBBLE_CHECK(rename_durably(path_, out_));
    remove_job_files(out_);
    return Ok{};
}

Status WorkFolder::publish_file(const std::string& name) {
    NIBBLE_CHECK(check_output_is_free(out_));
    NIBBLE_CHECK(rename_durably(path_ / name, out_));
    discard();
    return Ok{};
}

Error WorkFolder::another_job(const Error& why) const {
    return fail(
        "{}: cannot resume: it is left from another job (other tensors, formats or --max-shard-size): {}; repeat that "
        "job's options, or remove the folder",
        path_.string(), why.message());
}

void WorkFolder::discard() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
}

}  // namespace nibble
