// What a calibration has found so far, on disk, so that a killed job does not look for it again: ranges when all text
// went forward, codes and scales of every solved linear. A journal (io/journal.h) and one file of solutions behind it;
// what the journal lists and the checksum confirms is taken over, the rest is found again, to the same bits.
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
    // Starts or continues the files in `folder`, which is made. Error: they belong to another calibration (says how).
    static Result<std::unique_ptr<CalibrationKeep>> open(const std::filesystem::path& folder, const Plan& plan,
                                                         const JobIdentity& identity);

    std::optional<Json> ranges() const { return journal_->finished(-1); }
    Status note_ranges(Json ranges) { return journal_->append(-1, std::move(ranges)); }
    // Of every linear that an earlier run solved and whose bytes are whole, once each.
    Status recall(const std::function<Status(const std::string& module, Solution solution)>& take);
    Status note(const std::string& module, const Solution& solution);

private:
    CalibrationKeep(const Plan& plan, std::unique_ptr<Journal> journal, FileDescriptor file);

    const Plan* plan_;
    std::unique_ptr<Journal> journal_;
    FileDescriptor file_;
    std::unordered_map<std::string_view, int64_t> entries_;  // by module
    int64_t end_ = 0;                                        // of the solutions that the journal lists
};

}  // namespace nibble
