// The checkpoints of a run: FOLDER/step_00000100.safetensors ... They are written in the background, one at a time;
// older ones go when a newer one is on the device. What fails is told and costs nothing that was there.
#pragma once

#include "run/state.h"
#include "train/train_config.h"

#include <atomic>
#include <optional>
#include <thread>

namespace nibble {

struct RunCheckpoint {
    int64_t step = 0;
    std::filesystem::path file;
};

// Whole ones, by step. A folder that is not there has none.
Result<std::vector<RunCheckpoint>> list_checkpoints(const std::filesystem::path& folder);

class RunCheckpoints {
public:
    // Makes the folder and removes what a killed process left half-written. One process at a time: the caller's lock.
    static Result<std::unique_ptr<RunCheckpoints>> open(const std::filesystem::path& folder, const TrainSaving& saving);
    ~RunCheckpoints();  // waits

    // Waits for the one before, copies the state and begins to write it.
    void save(TrainEngine& trainer, RunPlace place);
    // Until nothing is being written. Error: why the last save() failed, or the removal of older ones.
    Status wait();
    // The same without waiting: done as long as something is being written.
    Status look();

    // What save() does when it is done: only those stay that are to be kept.
    Status remove_old() const;

    const std::filesystem::path& folder() const { return folder_; }

private:
    RunCheckpoints(std::filesystem::path folder, const TrainSaving& saving)
        : folder_(std::move(folder)), saving_(saving) {}
    Status write(const RunState& state) const;

    std::filesystem::path folder_;
    TrainSaving saving_;
    std::thread thread_;
    std::atomic<bool> written_ = true;  // the thread is at its end
    std::optional<Error> failure_;      // the thread's while it runs
};

}  // namespace nibble
