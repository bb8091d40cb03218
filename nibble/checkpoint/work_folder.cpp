#include "checkpoint/work_folder.h"

#include "base/map_faults.h"
#include "checkpoint/output_place.h"
#include "io/atomic_file.h"
#include "io/file_descriptor.h"
#include "io/journal.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

namespace nibble {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view lock_name = ".nibble-lock", work_name = ".nibble-work";
// endings after OUT.partial
constexpr std::string_view lock_ending = ".lock", journal_ending = ".journal";

// "out/" and "out" are the same path.
fs::path without_slash(const fs::path& path) {
    const fs::path normal = path.lexically_normal();
    return normal.has_filename() ? normal : normal.parent_path();
}

Status check_output_is_free(const fs::path& out) {
    std::error_code error;
    const auto status = fs::symlink_status(out, error);
    if (!fs::exists(status)) return Ok{};
    if (fs::is_directory(status) && fs::is_empty(out, error) && !error) return Ok{};
    return fail(ErrorKind::file, "{}: exists already; remove it or choose another output", out.string());
}

// The journal is kept: see take_journal_out().
void remove_job_files(const fs::path& folder) {
    std::error_code ignored;
    std::vector<fs::path> files;
    for (fs::directory_iterator it(folder, ignored), end; !ignored && it != end; it.increment(ignored)) {
        const std::string name = it->path().filename().string();
        if (name.starts_with(job_file_prefix) && name != Journal::file_name) files.push_back(it->path());
    }
    for (const fs::path& file : files) fs::remove(file, ignored);
}

bool holds_job_files_only(const fs::path& folder) {
    std::error_code error;
    for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error))
        if (!it->path().filename().string().starts_with(job_file_prefix)) return false;
    return !error;
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

Result<WorkFolder::Lock> WorkFolder::Lock::take(const fs::path& folder) { return take(folder / lock_name, folder); }

Result<WorkFolder::Lock> WorkFolder::Lock::take(const fs::path& file, const fs::path& shown) {
    // Releasing a lock removes its file, so the opened file may be removed before it is locked.
    for (int attempt = 0; attempt < 1000; ++attempt) {
        Lock lock;
        lock.fd_ = ::open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
        if (lock.fd_ < 0) return fail(ErrorKind::file, "{}: cannot open: {}", file.string(), std::strerror(errno));
        std::array<char, 32> text{};
        const bool taken = ::flock(lock.fd_, LOCK_EX | LOCK_NB) == 0;
        const int problem = errno;
        const ssize_t n = ::pread(lock.fd_, text.data(), text.size(), 0);
        if (!taken) {
            if (problem != EWOULDBLOCK)
                return fail(ErrorKind::file, "{}: cannot lock: {}", file.string(), std::strerror(problem));
            std::string holder(text.data(), n > 0 ? static_cast<size_t>(n) : 0);
            while (!holder.empty() && (holder.back() < '0' || holder.back() > '9')) holder.pop_back();
            return fail(ErrorKind::file, "{}: another process{} is writing it; wait for it or stop it", shown.string(),
                        holder.empty() ? "" : fmt::format(" ({})", holder));
        }
        struct stat opened {
        }, named{};
        if (::fstat(lock.fd_, &opened) != 0 || ::stat(file.c_str(), &named) != 0 || opened.st_ino != named.st_ino ||
            opened.st_dev != named.st_dev)
            continue;
        lock.file_ = file;
        lock.left_ = n > 0;  // written by a process that died without removing it
        const std::string id = fmt::format("{}\n", ::getpid());
        if (::ftruncate(lock.fd_, 0) != 0 || ::pwrite(lock.fd_, id.data(), id.size(), 0) < 0)
            return fail(ErrorKind::file, "{}: cannot write: {}", file.string(), std::strerror(errno));
        return lock;
    }
    return fail(ErrorKind::file, "{}: cannot lock it, because other processes keep creating and removing it",
                file.string());
}

void WorkFolder::Lock::release() {
    if (fd_ < 0) return;
    if (!file_.empty()) ::unlink(file_.c_str());
    ::close(std::exchange(fd_, -1));
}

fs::path WorkFolder::sibling(std::string_view ending) const {
    fs::path path = path_;
    return path += ending;
}

// Returns true if an earlier run finished part of its work, that is, whether a journal has more than its first line.
bool WorkFolder::holds_work() const {
    for (const fs::path& journal : {path_ / Journal::file_name, sibling(journal_ending)})
        if (Journal::holds_units(journal)) return true;
    return false;
}

bool WorkFolder::is_ours() const {
    std::error_code ignored;
    return lock_.left() || fs::is_empty(path_, ignored) ||
           std::ranges::any_of(std::array{work_name, lock_name, Journal::file_name},
                               [&](std::string_view name) { return fs::exists(path_ / name, ignored); });
}

// Cleans up after a run that was killed while it published (see publish()). If the output has already left the folder,
// the rest is removed.
Status WorkFolder::tidy() {
    std::error_code ignored;
    const fs::path outside = sibling(journal_ending), inside = path_ / Journal::file_name;
    if (lock_.left() && fs::is_directory(path_, ignored) && !fs::exists(inside, ignored) && holds_job_files_only(path_))
        discard();
    if (!fs::exists(outside, ignored)) return Ok{};
    if (fs::is_directory(path_, ignored) && !fs::exists(inside, ignored)) return rename_durably(outside, inside);
    fs::remove(outside, ignored);
    return Ok{};
}

Status WorkFolder::make_empty(int64_t bytes_needed) {
    std::error_code error;
    if (fs::is_directory(path_, error)) discard();
    NIBBLE_CHECK(check_output_place(out_, bytes_needed));
    error.clear();
    if (!fs::create_directory(path_, error))
        return fail(ErrorKind::file, "{}: cannot create: {}", path_.string(),
                    error ? error.message() : "exists already");
    NIBBLE_TRY(auto mark, FileDescriptor::open(path_ / work_name, O_WRONLY | O_CREAT));
    fresh_ = true;
    return mark.close();
}

Result<WorkFolder> WorkFolder::named(const fs::path& out) {
    WorkFolder work;
    work.out_ = without_slash(out);
    if (!work.out_.has_filename()) return fail(ErrorKind::file, "'{}': is not a name for an output", out.string());
    work.path_ = work.out_;
    work.path_ += ".partial";
    return work;
}

Status WorkFolder::look(ExportMode mode, int64_t bytes_needed) const {
    NIBBLE_CHECK(check_output_is_free(out_));
    std::error_code ignored;
    if (!fs::is_directory(path_, ignored)) return check_output_place(out_, bytes_needed);
    if (mode == ExportMode::create && holds_work())
        return fail(ErrorKind::file,
                    "{}: is left from an interrupted job; resume it with --resume or remove the folder",
                    path_.string());
    return Ok{};
}

Status WorkFolder::check(const fs::path& out, ExportMode mode, int64_t bytes_needed) {
    NIBBLE_TRY(WorkFolder work, named(out));
    std::error_code ignored;
    // Error if another process works there.
    if (fs::exists(work.sibling(lock_ending), ignored)) {
        NIBBLE_TRY(work.lock_, Lock::take(work.sibling(lock_ending), work.path_));
        // A run that was killed after publishing may have left files (including this lock file) that no other run would
        // remove.
        NIBBLE_CHECK(work.tidy());
        if (!fs::exists(work.out_, ignored)) work.lock_.keep_file();
    }
    return work.look(mode, bytes_needed);
}

Result<WorkFolder> WorkFolder::open(const fs::path& out, ExportMode mode, int64_t bytes_needed) {
    NIBBLE_TRY(WorkFolder work, named(out));
    std::error_code error;
    if (!fs::exists(work.sibling(lock_ending), error)) NIBBLE_CHECK(work.look(mode, bytes_needed));
    error.clear();
    if (work.path_.has_parent_path()) fs::create_directories(work.path_.parent_path(), error);
    if (error) return fail(ErrorKind::file, "{}: cannot create its folder: {}", work.path_.string(), error.message());
    NIBBLE_TRY(work.lock_, Lock::take(work.sibling(lock_ending), work.path_));
    NIBBLE_CHECK(work.tidy());
    // There is nothing to resume: schedulers repeat the command of a job that was killed before it created a file.
    if (!fs::is_directory(work.path_, error)) mode = ExportMode::create;
    NIBBLE_CHECK(work.look(mode, bytes_needed));  // another process may have finished in the meantime
    if (mode == ExportMode::resume) {
        remove_abandoned_files(work.path_);
        return work;
    }
    if (fs::is_directory(work.path_, error) && !work.is_ours())
        return fail(ErrorKind::file,
                    "{}: exists and is not unfinished work of nibble; remove it or choose another output",
                    work.path_.string());
    NIBBLE_CHECK(work.make_empty(bytes_needed));
    return work;
}

Result<WorkFolder> WorkFolder::share(const fs::path& out) {
    NIBBLE_TRY(WorkFolder work, named(out));
    std::error_code error;
    if (!fs::is_directory(work.path_, error))
        return fail(ErrorKind::file, "{}: is missing; another process should have created it", work.path_.string());
    return work;
}

Result<bool> WorkFolder::start_over(int64_t bytes_needed) {
    if (fresh_ || holds_work() || !is_ours()) return false;
    NIBBLE_CHECK(make_empty(bytes_needed));
    return true;
}

// Killing the process at any moment leaves either work that can be resumed, or a whole output without files of the job:
// the journal is moved next to the folder before the folder gets its final name, and removed afterwards.
Status WorkFolder::publish(const fs::path& from) {
    NIBBLE_CHECK(check_maps());
    NIBBLE_CHECK(check_output_is_free(out_));
    remove_job_files(path_);
    std::error_code error;
    const fs::path inside = path_ / Journal::file_name, outside = sibling(journal_ending);
    const bool journal = fs::exists(inside, error);
    if (journal) NIBBLE_CHECK(rename_durably(inside, outside));
    const Status renamed = rename_durably(from, out_);
    if (!renamed.ok() && fs::exists(from, error)) {
        if (journal) fs::rename(outside, inside, error);
        return renamed;
    }
    // The output now has its final name. From here an error means that the name may not be on disk yet.
    if (from != path_) discard();
    fs::remove(outside, error);
    lock_.release();
    return renamed;
}

Status WorkFolder::publish() { return publish(path_); }

Status WorkFolder::publish_file(const std::string& name) { return publish(path_ / name); }

Error WorkFolder::another_job(const Error& why) const {
    return fail(
        ErrorKind::file,
        "{}: cannot resume: {}; if it is left from another job (other tensors, formats or --max-shard-size), repeat "
        "that "
        "job's options, or remove the folder",
        path_.string(), why.message());
}

void WorkFolder::discard() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
}

}  // namespace nibble
