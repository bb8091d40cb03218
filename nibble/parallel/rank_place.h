// The place of a process among the processes of its job, as its launcher states it.
#pragma once

#include "base/error.h"

#include <optional>
#include <string>

namespace nibble {

// The rank of a process and the meeting address: rank 0 listens at `address` ("unix:/path" or "host:port"), the others
// connect to it.
struct RankPlace {
    int rank = 0, size = 1;
    std::string address;  // "": the environment states none
    // Index of this process among those of its machine, and their number, if the launcher provides them.
    std::optional<int> local_rank, local_size;
    bool alone() const { return size == 1; }
    // Returns whether the launcher states that all ranks run on one machine.
    bool on_one_machine() const { return alone() || local_size == size; }
};

// Reads the place from the environment. The first of these pairs that is set gives rank and number of ranks:
//
//   NIBBLE_RANK, NIBBLE_RANKS               by hand
//   OMPI_COMM_WORLD_RANK, .._SIZE           mpirun of Open MPI
//   PMI_RANK, PMI_SIZE                      mpirun of MPICH, srun --mpi=pmi2
//   RANK, WORLD_SIZE                        torchrun
//   SLURM_PROCID, SLURM_STEP_NUM_TASKS      srun
//   PMIX_RANK, NIBBLE_RANKS                 a PMIx launcher, which sets no number of ranks
//   JOB_COMPLETION_INDEX, NIBBLE_RANKS      a Kubernetes job with completionMode Indexed
//
// Without any of them the process is alone. Slurm's variables count only in a step (SLURM_STEP_ID), because a batch
// script has them too and is one process. Local numbers come from the same launcher. The address is NIBBLE_ADDRESS, or
// MASTER_ADDR and MASTER_PORT (with torchrun the port above, because its own process listens at that one), or for ranks
// of one machine a socket in TMPDIR that has the launcher's name of the job (Open MPI, Slurm). Error: a rank that is
// not a number below the size.
Result<RankPlace> rank_place();

// Error: several ranks without an address. For jobs whose ranks connect to each other.
Status need_address(const RankPlace& place);

// Returns a string that is equal in processes which share a machine's memory: host name and boot id. Containers on one
// machine have different host names, and their own memory limits.
std::string machine_name();

}  // namespace nibble
