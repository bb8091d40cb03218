// The folder OUT.calibration, which holds the results of calibration until the job is done. One process uses it at a
// time.
#pragma once

#include "checkpoint/work_folder.h"

#include <filesystem>
#include <utility>

namespace nibble {

class CalibrationFolder {
public:
    // Creates the folder and locks it for the lifetime of the object. A folder with earlier work is accepted only with
    // `resume`. Errors: another process holds the lock; work of an interrupted job without `resume`.
    static Result<CalibrationFolder> hold(const std::filesystem::path& folder, bool resume);
    CalibrationFolder() = default;
    CalibrationFolder(CalibrationFolder&& other) noexcept
        : folder_(std::exchange(other.folder_, {})), lock_(std::move(other.lock_)) {}
    CalibrationFolder& operator=(CalibrationFolder&& other) noexcept {
        std::swap(folder_, other.folder_);
        std::swap(lock_, other.lock_);
        return *this;
    }
    // Removes the folder if nothing was saved in it.
    ~CalibrationFolder();

    // Records that the output is complete and about to be published. After publishing, the saved results are no longer
    // needed.
    Status mark_done();
    // Removes the folder with its contents at the end of the job.
    void remove();
    // Removes `folder` if a process was killed between publishing and remove(). Call it for a job whose output exists.
    static void tidy(const std::filesystem::path& folder);

private:
    std::filesystem::path folder_;  // empty: no folder is held
    WorkFolder::Lock lock_;
};

}  // namespace nibble
