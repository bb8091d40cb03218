#include "cli/run_output.h"

#include <fmt/format.h>

#include <algorithm>

namespace nibble {

namespace fs = std::filesystem;

int64_t planned_run_bytes(const Checkpoint& model, const TrainSaving& saving, bool adapters) {
    int64_t numbers = 0;
    for (const CheckpointTensor& t : model.tensors()) {
        int64_t elements = 1;
        for (const int64_t size : t.shape) elements *= size;
        numbers += elements;
    }
    const int64_t state = 12, written = 2;  // bytes a number: master and two moments in F32; BF16
    const int64_t checkpoints = adapters ? 0 : std::min<int64_t>(saving.keep, 1) * 2;
    return (checkpoints * state + written) * numbers;
}

Result<bool> ended_earlier(const RunFolder* folder, const fs::path& result, int64_t first_step, int64_t steps,
                           TrainEngine& trainer) {
    return trainer.any(folder && first_step == steps && RunFolder::has_result(result));
}

void print_where_it_begins(const fs::path& output, bool resume, int64_t first_step) {
    if (first_step > 0)
        fmt::print("goes on after {} steps\n", first_step);
    else if (resume)
        fmt::print("{}: nothing to resume, the run starts from the beginning\n", output.string());
}

void print_ended_earlier(const fs::path& result, int64_t steps) {
    fmt::print("{}: the run has made its {} steps already\n", result.string(), steps);
}

}  // namespace nibble
