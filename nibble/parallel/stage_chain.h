// A computation in stages that ranks divide through files in a shared folder, without a connection. Stage s reads
// pieces (arrays of floats) that earlier stages have written. While a rank computes piece i of stage s, the rank of
// stage s - 1 computes piece i + 1. Each stage runs in one rank from its first to its last piece, so sums over pieces
// have the order of one process.
//
// The folder holds, for stage 3 and lease number N (parallel/lease.h):
//   stage-00003.N          lease
//   stage-00003.N.results/ results of the lease's holder
//   stage-00003.done       N of the rank that completed the stage
//   piece-00003-00007      piece 7 that stage 3 has written
#pragma once

#include "parallel/lease.h"

#include <functional>
#include <span>
#include <vector>

namespace nibble {

struct StageChainOptions {
    std::filesystem::path folder;  // is created; belongs to one chain of one job
    std::string who;               // this process in leases: "rank 2"
    std::chrono::milliseconds expiry{60'000};
    std::function<bool()> should_stop;
};

class StageChain {
public:
    class Stage {
    public:
        int64_t index() const { return index_; }
        // Folder for the results of this stage; empty at the start.
        const std::filesystem::path& results() const { return results_; }
        // Waits for a piece of an earlier stage and reads it. Returns false if this stage must be given up: the rank of
        // the earlier stage has ended, or another rank has completed this stage. Errors: stopped on request; the file
        // has another size.
        Result<bool> read(int64_t stage, int64_t piece, std::span<float> values);
        // Waits until an earlier stage is complete. Returns false as read() does.
        Result<bool> wait_for(int64_t stage);
        Status write(int64_t piece, std::span<const float> values);
        // Once this stage is complete, removes pieces [first, last) of an earlier stage.
        void free_later(int64_t stage, int64_t first, int64_t last) { free_.push_back({stage, first, last}); }

    private:
        friend class StageChain;
        struct Pieces {
            int64_t stage, first, last;
        };
        Stage(StageChain& chain, int64_t index, int number, std::filesystem::path results)
            : chain_(chain), index_(index), number_(number), results_(std::move(results)) {}

        StageChain& chain_;
        int64_t index_;
        int number_;  // number of the lease
        std::filesystem::path results_;
        std::vector<Pieces> free_;
    };

    static Result<std::unique_ptr<StageChain>> open(StageChainOptions options, int64_t stages);

    // Runs stages that no other rank runs until all are complete. `work` returns false if it gave up a stage, which may
    // run again later, from its first piece. Errors: those of `work`; stopped on request.
    Status run(const std::function<Result<bool>(Stage&)>& work);
    // Returns the results of a complete stage.
    Result<std::filesystem::path> results(int64_t stage) const;

private:
    StageChain(StageChainOptions options, int64_t stages) : options_(std::move(options)), stages_(stages) {}
    std::string lease(int64_t stage) const;
    std::filesystem::path piece(int64_t stage, int64_t index) const;
    bool done(int64_t stage) const;
    // Returns whether no rank works on a stage that is not complete.
    bool abandoned(int64_t stage);
    Status wait(std::chrono::milliseconds time) const;

    StageChainOptions options_;
    int64_t stages_;
    std::unique_ptr<Leases> leases_;
};

}  // namespace nibble
