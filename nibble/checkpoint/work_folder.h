// The folder an output is built in: OUT.partial, locked against a second process, renamed to OUT at the end.
#pragma once

#include "checkpoint/export.h"

#include <utility>

namespace nibble {

// Travels with every checkpoint nibble writes: who made it and how (ExportSpec::manifest).
inline constexpr std::string_view manifest_name = "nibble.json";

// Files of the job itself (the lock; the caller's journal) begin with this and never reach the finished output.
inline constexpr std::string_view job_file_prefix = ".nibble-";

class WorkFolder {
public:
    // create: OUT must not exist (an empty folder is fine) and OUT.partial must not; checks that `bytes_needed` are
    // free, then makes the folder and its parents. resume: OUT.partial must exist. Both take the lock; an error says
    // who holds it.
    static Result<WorkFolder> open(const std::filesystem::path& out, ExportMode mode, int64_t bytes_needed);

    const std::filesystem::path& path() const { return path_; }

    // Renames the folder, or only the one file of it that is the output, to the final name and removes the job's files.
    // What is renamed must be synced.
    Status publish();
    Status publish_file(const std::string& name);

    // For a resume that finds other files than its own: `why` is what it found.
    Error another_job(const Error& why) const;

    // Removes the folder and all in it: for a creation that failed half-way.
    void discard();

private:
    // An advisory lock on an open file: gone with the process, even with a killed one.
    class Lock {
    public:
        static Result<Lock> take(const std::filesystem::path& folder);
        Lock() = default;
        Lock(Lock&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
        Lock& operator=(Lock&& other) noexcept {
            std::swap(fd_, other.fd_);
            return *this;
        }
        ~Lock();

    private:
        int fd_ = -1;
    };

    std::filesystem::path out_, path_;
    Lock lock_;
};

// "1.5 GB"
std::string size_text(int64_t bytes);

}  // namespace nibble
