// Saves the results of a calibration to disk, so that a killed job does not repeat the work: ranges after all forward
// passes, codes and scales of every solved linear. A journal (io/journal.h) and a file of solutions. Results that the
// journal lists and whose checksum matches are reused; the others are computed again, with the same bits.
#pragma once

#include "io/file_descriptor.h"
#include "io/journal.h"
#include "quant/plan.h"
#include "quant/solve.h"

#include <filesystem>
#include <functional>
#include <memory>
#include <unordered_map>

namespace nibble {

class CalibrationKeep {
public:
    // Starts or continues the files in `folder`, creating it. Error: they belong to another calibration; the message
    // contains the difference.
    static Result<std::unique_ptr<CalibrationKeep>> open(const std::filesystem::path& folder, const Plan& plan,
                                                         const JobIdentity& identity);

    // Opens the complete files of another process, which note() and note_ranges() cannot change.
    static Result<std::unique_ptr<CalibrationKeep>> read(const std::filesystem::path& folder, const Plan& plan,
                                                         const JobIdentity& identity);

    std::optional<Json> ranges() const { return journal_->finished(-1); }
    Status note_ranges(Json ranges) { return journal_->append(-1, std::move(ranges)); }
    // Calls `take` once for every linear that an earlier run solved and whose bytes are intact.
    Status recall(const std::function<Status(const std::string& module, Solution solution)>& take);
    Status note(const std::string& module, const Solution& solution);

private:
    CalibrationKeep(const Plan& plan, std::unique_ptr<Journal> journal, FileDescriptor file);

    const Plan* plan_;
    std::unique_ptr<Journal> journal_;
    FileDescriptor file_;
    std::unordered_map<std::string_view, int64_t> entries_;  // by module
    int64_t end_ = 0;                                        // end of the solutions that the journal lists
};

}  // namespace nibble
