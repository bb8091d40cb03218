#include "quant/calibration_folder.h"

#include "io/atomic_file.h"

#include <string_view>
#include <vector>

namespace nibble {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view lock_name = ".nibble-lock";
constexpr std::string_view done_name = ".nibble-done";

bool keeps_nothing(const fs::path& folder) {
    std::error_code error;
    for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error))
        if (it->path().filename() != lock_name) return false;
    return !error;
}

}  // namespace

Result<CalibrationFolder> CalibrationFolder::hold(const fs::path& folder, bool resume) {
    std::error_code error;
    fs::create_directories(folder, error);
    if (error) return fail(ErrorKind::file, "{}: cannot create: {}", folder.string(), error.message());
    NIBBLE_TRY(auto lock, WorkFolder::Lock::take(folder));
    if (!resume && !keeps_nothing(folder))
        return fail(ErrorKind::file,
                    "{}: is left from an interrupted job; resume it with --resume or remove the folder",
                    folder.string());
    CalibrationFolder held;
    held.folder_ = folder;
    held.lock_ = std::move(lock);
    return held;
}

CalibrationFolder::~CalibrationFolder() {
    if (!folder_.empty() && keeps_nothing(folder_)) remove();
}

Status CalibrationFolder::mark_done() {
    return folder_.empty() ? Ok{} : write_file_atomically(folder_ / done_name, "");
}

void CalibrationFolder::remove() {
    std::error_code ignored;
    lock_.keep_file();  // the lock file is removed with the folder; a later file of that name belongs to another
                        // process
    std::vector<fs::path> kept;
    for (fs::directory_iterator it(folder_, ignored), end; it != end; it.increment(ignored))
        if (it->path().filename() != done_name) kept.push_back(it->path());
    for (const fs::path& path : kept)
        fs::remove_all(path, ignored);  // the mark is removed last, because tidy()
                                        // depends on it
    if (!folder_.empty()) fs::remove_all(folder_, ignored);
    folder_.clear();
}

void CalibrationFolder::tidy(const fs::path& folder) {
    std::error_code ignored;
    if (!fs::is_directory(folder, ignored) || !(fs::exists(folder / done_name, ignored) || keeps_nothing(folder)))
        return;
    if (auto held = hold(folder, true); held.ok()) held->remove();
}

}  // namespace nibble
