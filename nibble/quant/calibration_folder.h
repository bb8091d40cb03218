// OUT.calibration: what calibration has found, kept until the job is done. One process works in it at a time.
#pragma once

#include "checkpoint/work_folder.h"

#include <filesystem>
#include <utility>

namespace nibble {

class CalibrationFolder {
public:
    // Makes the folder and takes its lock for the life of the object. A folder with earlier work is taken with `resume`
    // only. Errors: who holds the lock; work that is left from an interrupted job.
    static Result<CalibrationFolder> hold(const std::filesystem::path& folder, bool resume);
    CalibrationFolder() = default;
    CalibrationFolder(CalibrationFolder&& other) noexcept
        : folder_(std::exchange(other.folder_, {})), lock_(std::move(other.lock_)) {}
    CalibrationFolder& operator=(CalibrationFolder&& other) noexcept {
        std::swap(folder_, other.folder_);
        std::swap(lock_, other.lock_);
        return *this;
    }
    // A folder in which nothing was kept goes away.
    ~CalibrationFolder();

    // The output is whole and about to be published: what is kept is needed no more once it has its name.
    Status mark_done();
    // The job is done: with all in it.
    void remove();
    // For a job whose output is there: what a process left in `folder` that was killed between publishing and remove().
    static void tidy(const std::filesystem::path& folder);

private:
    std::filesystem::path folder_;  // empty: none
    WorkFolder::Lock lock_;
};

}  // namespace nibble
