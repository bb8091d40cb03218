// The processes of one job, called ranks 0 to size - 1, and how they hand bytes to one another: sockets between every
// two of them. All ranks make the same calls in the same order.
//
// When a rank ends, whatever the reason, the others' call in hand and all later ones fail with one line that names it:
// at once when its process is gone, within `patience` when it hangs. Nothing here depends on which rank is faster.
#pragma once

#include "base/error.h"
#include "base/mapped_file.h"

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace nibble {

using RankBytes = std::vector<std::byte>;

// The place of a process among the ranks, and where they meet: rank 0 listens at `address` ("unix:/path" or
// "host:port"), the others connect to it.
struct RankPlace {
    int rank = 0, size = 1;
    std::string address;
    // The number of this process among those of its machine, and how many those are, where the launcher says it.
    std::optional<int> local_rank, local_size;
    bool alone() const { return size == 1; }
};

// From the environment: NIBBLE_RANK, NIBBLE_RANKS and NIBBLE_ADDRESS, or the ranks that mpirun (OMPI_COMM_WORLD_RANK,
// PMI_RANK), torchrun (RANK) or srun (SLURM_PROCID of a step) gave; local numbers come from the same launcher. Without
// NIBBLE_ADDRESS: MASTER_ADDR and MASTER_PORT. None of them: alone. Slurm's variables count in a step (SLURM_STEP_ID)
// only, because a batch script has them too and is one process. Errors: a rank that is no number or not below the
// size, several ranks without an address.
Result<RankPlace> rank_place();

// Equal in processes that share a machine's memory: its host name and the number of its boot. (Containers of one
// machine have host names of their own, and limits of their own.)
std::string machine_name();

class RankGroup {
public:
    struct Options {
        // What must be equal in all ranks (program, config): compared when they meet.
        std::string identity;
        std::chrono::milliseconds meeting{60'000};    // until all ranks are there
        std::chrono::milliseconds patience{600'000};  // without a byte from a rank that is waited for
    };
    // Errors: nobody at the address, ranks that do not come, two of the same number, another identity (what differs).
    static Result<std::unique_ptr<RankGroup>> meet(const RankPlace& place, const Options& options);
    ~RankGroup();
    RankGroup(const RankGroup&) = delete;
    RankGroup& operator=(const RankGroup&) = delete;

    int rank() const { return rank_; }
    int size() const { return size_; }

    // to[r] goes to rank r; what every rank had for this one comes back, by rank. Own entries are handed through.
    Result<std::vector<RankBytes>> exchange(std::vector<RankBytes> to);
    // What every rank has, by rank.
    Result<std::vector<RankBytes>> gather(RankBytes own);
    // Rank 0's bytes, for all.
    Result<RankBytes> share(RankBytes of_first);
    // Error: a rank has ended. Says nothing and does not wait; between calls only.
    Status alive() const;
    // Whether any rank says so.
    Result<bool> any(bool mine);

private:
    RankGroup(int rank, int size, const Options& options);
    struct Peer;
    struct Transfer;
    Status meet_first(const RankPlace& place);
    Status meet_others(const RankPlace& place);
    Status adopt(int socket, int rank);
    Status run(std::vector<Transfer>& transfers);

    int rank_ = 0, size_ = 1;
    Options options_;
    std::vector<Peer> peers_;  // by rank; the own one has no socket
    bool broken_ = false;
};

}  // namespace nibble
