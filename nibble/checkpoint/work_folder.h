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
    // An advisory lock on an open file: gone with the process, even with a killed one, and the file with the lock.
    class Lock {
    public:
        // In `folder`, or the file itself. Error: who holds it (of `shown`).
        static Result<Lock> take(const std::filesystem::path& folder);
        static Result<Lock> take(const std::filesystem::path& file, const std::filesystem::path& shown);
        Lock() = default;
        Lock(Lock&& other) noexcept
            : fd_(std::exchange(other.fd_, -1)), left_(other.left_), file_(std::move(other.file_)) {}
        Lock& operator=(Lock&& other) noexcept {
            std::swap(fd_, other.fd_);
            std::swap(left_, other.left_);
            std::swap(file_, other.file_);
            return *this;
        }
        ~Lock() { release(); }

        void release();
        bool left() const { return left_; }  // the file was there: a process died that held the lock
        void keep_file() { file_.clear(); }

    private:
        int fd_ = -1;
        bool left_ = false;
        std::filesystem::path file_;  // removed with the lock
    };

    // What open() looks at before it makes anything: for a caller with hours of work before the first byte.
    static Status check(const std::filesystem::path& out, ExportMode mode, int64_t bytes_needed);

    // create: OUT must not exist (an empty folder is fine) and OUT.partial must hold no finished work; what a process
    // left there that died before it finished any is removed. Checks that `bytes_needed` are free, then makes the
    // folder and its parents. resume: what OUT.partial holds stays; without such a folder it is create. Both take the
    // lock, OUT.partial.lock; an error says who holds it.
    static Result<WorkFolder> open(const std::filesystem::path& out, ExportMode mode, int64_t bytes_needed);

    const std::filesystem::path& path() const { return path_; }
    // The folder is empty: all files are still to be made.
    bool fresh() const { return fresh_; }

    // For a resume whose files cannot be opened again: when no work is finished there, as after a kill while they
    // were being made, the folder is emptied, and is fresh then. False: there is work.
    Result<bool> start_over(int64_t bytes_needed);

    // Renames the folder, or only the one file of it that is the output, to the final name, without the job's files.
    // What is renamed must be synced. Error also when a source became shorter while it was read.
    Status publish();
    Status publish_file(const std::string& name);

    // For a resume that finds other files than its own: `why` is what it found.
    Error another_job(const Error& why) const;

    // Removes the folder and all in it: for a creation that failed half-way.
    void discard();

private:
    static Result<WorkFolder> named(const std::filesystem::path& out);
    std::filesystem::path beside(std::string_view ending) const;
    bool holds_work() const;
    bool is_ours() const;
    Status look(ExportMode mode, int64_t bytes_needed) const;
    Status tidy();
    Status make_empty(int64_t bytes_needed);
    Status publish(const std::filesystem::path& from);

    std::filesystem::path out_, path_;
    Lock lock_;
    bool fresh_ = false;
};

// "1.5 GB"
std::string size_text(int64_t bytes);

}  // namespace nibble
