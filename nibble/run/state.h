// Stores the state of a run in a file, so that training can continue with the same bits: FP32 masters, optimizer
// states, scales and directions of recipes with a history, number of steps, position of the data loader. Random numbers
// need no state (Philox, keyed by seed and step).
//
// A checkpoint is one safetensors file: "master.NAME" and "recipe" in F32, "m.NAME" and (if the optimizer has one)
// "v.NAME" in F32 or BF16. All other values are JSON under "nibble_run" in the metadata, including a hash of all
// tensors. "nibble_header_hash" in the metadata is the hash of the file's header, so that every byte of the file is
// checked. A file gets its final name when it is complete and on the device.
#pragma once

#include "base/json.h"
#include "run/identity.h"
#include "train/train_engine.h"

#include <filesystem>
#include <string>
#include <vector>

namespace nibble {

struct RunPlace {
    int64_t step = 0;              // completed steps, including skipped ones
    Json source = Json::object();  // position in the data: BatchSource::place()
    std::string identity;          // RunIdentity::text
};

// A copy of the state, so that training can continue while it is written.
struct RunState {
    RunPlace place;
    int64_t optimizer_steps = 0;
    std::vector<std::string> names;
    std::vector<std::vector<int64_t>> shapes;
    std::vector<std::vector<float>> masters;
    std::vector<StateNumbers> m, v;
    std::vector<float> recipe;  // TrainState::recipe
    std::vector<double> norms;
};

Result<RunState> copy_state(TrainEngine& trainer, RunPlace place);
// Returns a hash of the masters of all parameters, independent of their order: 16 hexadecimal digits.
std::string hash_of(const Parameters& parameters);

// Error: the disk is full; no file is left then.
Status write_state(const std::filesystem::path& file, const RunState& state);

// Reads a state into a trainer with the same parameters. After an error the trainer is unchanged. Errors: a damaged
// file; other parameters; a number that is not finite (names it); another `identity` (names the differences if both are
// JSON objects, followed by `another_run`, the advice to the user).
Result<RunPlace> read_state(const std::filesystem::path& file, const RunIdentity& identity, TrainEngine& trainer,
                            std::string_view another_run = {});
// The same from a run with any identity. The trainer keeps its own recipe state.
Result<RunPlace> read_fork(const std::filesystem::path& file, TrainEngine& trainer);

}  // namespace nibble
