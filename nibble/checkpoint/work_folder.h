// The folder in which an output is built: OUT.partial, locked against other processes, and renamed to OUT at the end.
#pragma once

#include "checkpoint/export.h"

#include <utility>

namespace nibble {

// Stored with every checkpoint that nibble writes: how it was made (ExportSpec::manifest).
inline constexpr std::string_view manifest_name = "nibble.json";

// Prefix of the job's own files (the lock, the caller's journal), which are not part of the finished output.
inline constexpr std::string_view job_file_prefix = ".nibble-";

class WorkFolder {
public:
    // An advisory lock on an open file. The system releases it when the process ends, even if it is killed.
    class Lock {
    public:
        // Locks `folder`, or the file itself. Error: another process holds the lock; the message names it and `shown`.
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
        bool left() const { return left_; }  // the lock file existed: a process died that held the lock
        void keep_file() { file_.clear(); }

    private:
        int fd_ = -1;
        bool left_ = false;
        std::filesystem::path file_;  // removed when the lock is released
    };

    // Runs the checks of open() without creating anything. For callers with hours of work before the first byte.
    static Status check(const std::filesystem::path& out, ExportMode mode, int64_t bytes_needed);

    // Opens and locks the folder (lock file OUT.partial.lock). create: OUT must not exist (an empty folder is allowed),
    // and OUT.partial must hold no finished work; leftovers of a process that died before it finished any work are
    // removed. Checks that `bytes_needed` are free, then creates the folder and its parents. resume: keeps the contents
    // of OUT.partial; without such a folder it works as create. Error: another process holds the lock; the message
    // names it.
    static Result<WorkFolder> open(const std::filesystem::path& out, ExportMode mode, int64_t bytes_needed);

    // Returns the folder that another process opened, without its lock. Error: there is no folder.
    static Result<WorkFolder> share(const std::filesystem::path& out);

    const std::filesystem::path& path() const { return path_; }
    // Returns true if the folder is empty, so that all files must be created.
    bool fresh() const { return fresh_; }

    // For a resume whose files cannot be opened again. If no work is finished there (as after a kill while the files
    // were created), empties the folder and returns true. Returns false if there is finished work.
    Result<bool> start_over(int64_t bytes_needed);

    // Renames the folder, or only the output file in it, to the final name, without the job's files. Everything must be
    // synced before. Error: also if a source file became shorter while it was read.
    Status publish();
    Status publish_file(const std::string& name);

    // Returns the error for a resume that finds the files of another job; `why` is the difference.
    Error another_job(const Error& why) const;

    // Removes the folder with its contents. For a creation that failed half-way.
    void discard();

private:
    static Result<WorkFolder> named(const std::filesystem::path& out);
    std::filesystem::path sibling(std::string_view ending) const;
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
