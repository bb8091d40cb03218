// The checkpoints of a run: FOLDER/step_00000100.safetensors and so on. They are written in the background, one at a
// time. Older ones are removed after a newer one is on the device. A failed write is reported and removes nothing.
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

// Lists the complete checkpoints in ascending order of steps. A missing folder has none.
Result<std::vector<RunCheckpoint>> list_checkpoints(const std::filesystem::path& folder);

class RunCheckpoints {
public:
    // Creates the folder and removes incomplete files of a killed process. The caller must hold the folder's lock.
    static Result<std::unique_ptr<RunCheckpoints>> open(const std::filesystem::path& folder, const TrainSaving& saving);
    ~RunCheckpoints();  // waits for the last write

    // Waits for the previous write, copies the state and starts to write it.
    void save(TrainEngine& trainer, RunPlace place);
    // Waits until nothing is being written. Error: the reason why the last save() or the removal of older checkpoints
    // failed.
    Status wait();
    // The same without waiting; returns success while a write is running.
    Status look();

    // Removes checkpoints that need not be kept. save() also does this after a write.
    Status remove_old() const;

    const std::filesystem::path& folder() const { return folder_; }

private:
    RunCheckpoints(std::filesystem::path folder, const TrainSaving& saving)
        : folder_(std::move(folder)), saving_(saving) {}
    Status write(const RunState& state) const;

    std::filesystem::path folder_;
    TrainSaving saving_;
    std::thread thread_;
    std::atomic<bool> written_ = true;  // the thread has finished
    std::optional<Error> failure_;      // the thread owns it while it runs
};

}  // namespace nibble
