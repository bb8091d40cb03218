// The state of a run in a file, from which training goes on to the same bits: FP32 masters, the states of the
// optimizer, the scales and directions of recipes that have a history, how many steps were made, the place of the
// loader. Random numbers need none (Philox, keyed by seed and step).
//
// One safetensors file per checkpoint: "master.NAME" and "recipe" in F32, "m.NAME" and (where the optimizer has
// one) "v.NAME" in F32 or BF16; everything else is
// JSON under "nibble_run" in its metadata, a hash of all tensors included. "nibble_header_hash" in the metadata is the
// hash of the file's header, so that every byte of the file is checked. A file gets its name when it is whole and on
// the device.
#pragma once

#include "base/json.h"
#include "run/identity.h"
#include "train/train_engine.h"

#include <filesystem>
#include <string>
#include <vector>

namespace nibble {

struct RunPlace {
    int64_t step = 0;              // steps that were made, skipped ones included
    Json source = Json::object();  // where the data is: BatchSource::place()
    std::string identity;          // RunIdentity::text
};

// A copy of the state, so that training goes on while it is written.
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
// Of the masters of all parameters, whatever their order: 16 hexadecimal digits.
std::string hash_of(const Parameters& parameters);

// Errors: a disk that is full (nothing is left of the file then).
Status write_state(const std::filesystem::path& file, const RunState& state);

// Into a trainer of the same parameters, which is renewed. Errors, with the trainer as before: a file that is damaged,
// of other parameters, or holds a number that is not finite (which); another `identity` (what differs is named, where
// both are JSON objects, and `another_run` ends the error: what the user can do then).
Result<RunPlace> read_state(const std::filesystem::path& file, const RunIdentity& identity, TrainEngine& trainer,
                            std::string_view another_run = {});
// The same from a run of any identity; what a recipe keeps is left as the trainer has it.
Result<RunPlace> read_fork(const std::filesystem::path& file, TrainEngine& trainer);

}  // namespace nibble
