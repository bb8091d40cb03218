// `--ranks N`: a command in several processes. Started by mpirun, srun or torchrun, or alone: then rank 0 is this
// process and starts the others itself, with the same arguments.
#pragma once

#include "parallel/rank_group.h"

#include <sys/types.h>

#include <filesystem>

namespace nibble {

class JobRanks {
public:
    // `wanted`: of the flag, 0 where it was not given. Errors: another number than the starter's, processes that cannot
    // be started, ranks that do not meet.
    static Result<JobRanks> join(int wanted, const RankGroup::Options& options);
    JobRanks(JobRanks&&) noexcept;
    JobRanks& operator=(JobRanks&&) = delete;
    // Parts from the others, waits for those that were started here and ends what does not end by itself.
    ~JobRanks();

    RankGroup* group() const { return group_.get(); }  // null: alone
    int rank() const { return group_ ? group_->rank() : 0; }
    int size() const { return group_ ? group_->size() : 1; }
    bool first() const { return rank() == 0; }
    // Of the processes on this machine that were started here: what one of them should take of all cores.
    int threads(int wanted) const;

private:
    JobRanks() = default;
    Status start(const RankPlace& place);

    std::unique_ptr<RankGroup> group_;
    std::vector<pid_t> started_;
    std::filesystem::path folder_;  // of the socket they meet at
    bool of_one_machine_ = false;
};

}  // namespace nibble
