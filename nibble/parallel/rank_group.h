// The processes of one job, ranks 0 to size - 1, and the exchange of bytes between them over one socket per pair of
// ranks. All ranks make the same calls in the same order.
//
// When a rank ends for any reason, the current and all later calls of the other ranks fail with one line that names it:
// at once if its process is gone, within `patience` if it hangs. Results do not depend on which rank is faster.
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

// The rank of a process and the meeting address: rank 0 listens at `address` ("unix:/path" or "host:port"), the others
// connect to it.
struct RankPlace {
    int rank = 0, size = 1;
    std::string address;
    // Index of this process among those of its machine, and their number, if the launcher provides them.
    std::optional<int> local_rank, local_size;
    bool alone() const { return size == 1; }
};

// Reads the place from the environment: NIBBLE_RANK, NIBBLE_RANKS and NIBBLE_ADDRESS, or the ranks set by mpirun
// (OMPI_COMM_WORLD_RANK, PMI_RANK), torchrun (RANK) or srun (SLURM_PROCID in a step). Local numbers come from the same
// launcher. Without NIBBLE_ADDRESS, MASTER_ADDR and MASTER_PORT are used. Without any of them the process is alone.
// Slurm's variables count only in a step (SLURM_STEP_ID), because a batch script has them too and is one process.
// Errors: a rank that is not a number below the size, several ranks without an address.
Result<RankPlace> rank_place();

// Returns a string that is equal in processes which share a machine's memory: host name and boot id. Containers on one
// machine have different host names, and their own memory limits.
std::string machine_name();

class RankGroup {
public:
    struct Options {
        // Must be equal in all ranks (program, config); compared when the ranks meet.
        std::string identity;
        std::chrono::milliseconds meeting{60'000};    // limit for all ranks to connect
        std::chrono::milliseconds patience{600'000};  // limit without a byte from a rank that is waited for
    };
    // Errors: no listener at the address, missing ranks, two ranks with the same number, a different identity (shows
    // the difference).
    static Result<std::unique_ptr<RankGroup>> meet(const RankPlace& place, const Options& options);
    ~RankGroup();
    RankGroup(const RankGroup&) = delete;
    RankGroup& operator=(const RankGroup&) = delete;

    int rank() const { return rank_; }
    int size() const { return size_; }

    // Sends to[r] to rank r and returns what every rank sent to this one, by rank. The own entry is passed through.
    Result<std::vector<RankBytes>> exchange(std::vector<RankBytes> to);
    // Returns the bytes of every rank, by rank.
    Result<std::vector<RankBytes>> gather(RankBytes own);
    // Returns rank 0's bytes on all ranks.
    Result<RankBytes> share(RankBytes of_first);
    // Fails if a rank has ended. Sends nothing and does not wait. Call only between other calls.
    Status alive() const;
    // Returns whether `mine` is true on any rank.
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
    std::vector<Peer> peers_;  // by rank; the own entry has no socket
    bool broken_ = false;
};

}  // namespace nibble
