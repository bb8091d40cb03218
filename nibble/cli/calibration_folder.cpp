#include "cli/calibration_folder.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;

bool keeps_nothing(const fs::path& folder) {
    std::error_code error;
    for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error))
        if (it->path().filename() != ".nibble-lock") return false;
    return !error;
}

}  // namespace

Result<CalibrationFolder> CalibrationFolder::hold(const fs::path& folder, bool resume) {
    std::error_code error;
    fs::create_directories(folder, error);
    if (error) return fail("{}: cannot create: {}", folder.string(), error.message());
    NIBBLE_TRY(auto lock, WorkFolder::Lock::take(folder));
    if (!resume && !keeps_nothing(folder))
        return fail("{}: is left from an interrupted job; resume it or remove the folder", folder.string());
    CalibrationFolder held;
    held.folder_ = folder;
    held.lock_ = std::move(lock);
    return held;
}

CalibrationFolder::~CalibrationFolder() {
    if (!folder_.empty() && keeps_nothing(folder_)) remove();
}

void CalibrationFolder::remove() {
    std::error_code ignored;
    lock_.keep_file();  // it goes with the folder; a file of that name afterwards is another process's
    if (!folder_.empty()) fs::remove_all(folder_, ignored);
    folder_.clear();
}

}  // namespace nibble
