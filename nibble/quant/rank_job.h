// A quantization that several processes do together. They share a folder and have no connection: each takes files of
// the export by leases (parallel/lease.h) and writes them whole; the last step is for one process.
//
// OUT.partial.ranks/ holds, until the output is finished:
//   rank-R.N             lease of rank R, with the facts that all ranks must share
//   calibration/         stages of the calibration (quant/rank_calibration.h)
//   prepare.N            lease for creating OUT.partial
//   prepared             the work folder that the files below belong to
//   file-00003.N         lease of output file 3
//   file-00003.N.jsonl   journal of the lease's holder
//   file-00003.done      exists when the file is complete
//   finish.N             lease for merging journals, verifying and publishing
#pragma once

#include "parallel/rank_place.h"
#include "quant/job.h"

#include <chrono>
#include <filesystem>
#include <memory>

namespace nibble {

class Leases;

struct RankJobOptions {
    RankPlace place;
    std::filesystem::path out;                 // as in ExportSpec
    std::chrono::milliseconds expiry{60'000};  // for ranks that do not start, and for leases that are not renewed
};

class RankJob {
public:
    // Meets the other ranks in the folder. Errors: a rank does not appear (also if the folder is not shared), has other
    // facts than this one (the message shows the difference), or is there twice.
    static Result<std::unique_ptr<RankJob>> join(RankJobOptions options, const JobIdentity& facts,
                                                 const JobHooks& hooks);
    ~RankJob();

    // Quantizes files until all are complete. Returns true in the one rank that must finish the export, and false in
    // the others when that rank has done so. Files, and the last step, of ranks that end are taken over. Errors: as
    // run_quantize(); work that is done stays.
    Result<bool> work(const Checkpoint& source, const Plan& plan, const JobOptions& job, const ExportSpec& spec,
                      ThreadPool& pool);
    // Returns whether another rank has published the output.
    bool finished() const;

private:
    RankJob(RankJobOptions options, const JobHooks& hooks);
    Status meet(const JobIdentity& identity);
    Status prepare(const ExportSpec& spec);
    bool prepared() const;
    std::vector<int> order(const Export& out) const;
    bool done(int file) const;
    struct Work;
    Result<bool> work_on(const Work& work, int file);
    Result<bool> finish_turn();
    Status wait() const;

    RankJobOptions options_;
    JobIdentity identity_;
    const JobHooks& hooks_;
    std::filesystem::path folder_;
    std::unique_ptr<Leases> leases_;
};

// Returns the folder for the stages of a calibration by ranks.
std::filesystem::path rank_calibration_folder(const std::filesystem::path& out);
// Return OUT.partial.ranks, and remove it when the output is published.
std::filesystem::path rank_folder(const std::filesystem::path& out);
void remove_rank_folder(const std::filesystem::path& out);

// Returns whether the output exists and no rank writes it any more.
bool is_finished_output(const std::filesystem::path& out);

// Adds what ranks have finished to the journal of the work folder, before run_quantize() resumes it. Does nothing if no
// ranks worked there. Error: their work belongs to another job.
Status merge_rank_journals(const std::filesystem::path& out, const std::filesystem::path& work_dir,
                           const JobIdentity& identity, int64_t units);

// For a process that works alone. Error: ranks are working at this output, or their work is there and `resume` is
// false. Waits up to `expiry` for a rank of another machine to renew its lease.
Status refuse_working_ranks(const std::filesystem::path& out, bool resume, std::chrono::milliseconds expiry,
                            const JobHooks& hooks);

}  // namespace nibble
