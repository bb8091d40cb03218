// `--ranks N`: runs a command in several processes. mpirun, srun or torchrun may start them; otherwise this process is
// rank 0 and starts the others with the same arguments.
#pragma once

#include "parallel/rank_group.h"

#include <sys/types.h>

#include <filesystem>

namespace nibble {

class JobRanks {
public:
    // `wanted`: value of the flag, 0 if not given. Errors: the launcher has another number of ranks; processes cannot
    // be started; ranks do not connect in time.
    static Result<JobRanks> join(int wanted, const RankGroup::Options& options);
    JobRanks(JobRanks&&) noexcept;
    JobRanks& operator=(JobRanks&&) = delete;
    // Disconnects from the others, waits for processes that were started here, and kills those that do not end.
    ~JobRanks();

    RankGroup* group() const { return group_.get(); }  // null: a single process
    int rank() const { return group_ ? group_->rank() : 0; }
    int size() const { return group_ ? group_->size() : 1; }
    bool first() const { return rank() == 0; }
    // Returns the number of threads for this process: if ranks were started here on one machine, its share of all
    // cores.
    int threads(int wanted) const;

private:
    JobRanks() = default;
    Status start(const RankPlace& place);

    std::unique_ptr<RankGroup> group_;
    std::vector<pid_t> started_;
    std::filesystem::path folder_;  // folder of the socket that connects the ranks
    bool of_one_machine_ = false;
};

}  // namespace nibble
