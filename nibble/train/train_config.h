// The configuration of a training run as one value.
#pragma once

#include "base/error.h"
#include "base/json.h"
#include "formats/format.h"
#include "io/schema.h"
#include "train/memory_plan.h"
#include "train/train_precision.h"

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace nibble {

enum class ScheduleKind : uint8_t { cosine, wsd, linear, constant };

// The learning rate of a step: from 0 up to 1 over `warmup` steps, then by kind down to `final_fraction`, times
// TrainOptimizer::learning_rate.
struct TrainSchedule {
    ScheduleKind kind = ScheduleKind::cosine;
    int64_t warmup = 0;           // steps
    double decay_fraction = 0.2;  // wsd: this last part of the steps goes down, by 1 - sqrt
    double final_fraction = 0.1;  // of the learning rate, at the last step
};

enum class OptimizerKind : uint8_t { adamw, muon };

struct TrainOptimizer {
    OptimizerKind kind = OptimizerKind::adamw;  // muon: for matrices of blocks (train/optimizer.h)
    bool bf16_states = false;                   // else FP32
    double momentum = 0.95;                     // of muon
    double learning_rate = 3e-4;
    double beta1 = 0.9, beta2 = 0.95, epsilon = 1e-8;
    double weight_decay = 0.1;  // decoupled, of matrices only
    double clip = 1.0;          // of the gradient's global norm; 0: none
    double skip_above = 0;      // a step whose norm is above this times the median of steps before is left out; 0: none
    int64_t skip_window = 64;   // so many steps before
    bool stop_at_outlier = false;  // else it is skipped
};

struct TrainData {
    std::filesystem::path folder;      // of `nibble data build`
    std::filesystem::path text;        // or one text file, cut into windows of `sequence` tokens
    bool synthetic = false;            // or tokens by Philox
    bool cut_documents = true;         // attention ends at documents, positions begin anew
    std::filesystem::path validation;  // a folder or text as above; empty: the folder's own, if any
};

struct TrainSaving {
    int64_t every = 0;       // steps; 0: at the end only
    int64_t keep = 2;        // the last so many checkpoints; 0: none is ever written
    int64_t keep_every = 0;  // and every one whose step this divides; 0: none
};

struct TrainValidation {
    int64_t every = 0;    // steps; 0: at the end only
    int64_t batches = 8;  // of `batch` rows
};

struct TrainQuality {
    // Steps between looks at what rounding does (train/cast_quality.h); 0: none; not said: TrainEngine::usual_look().
    std::optional<int64_t> every;
};

// Distillation: the loss of a label is (1 - cross_entropy) KL(teacher || model) + cross_entropy * -log p(label).
struct TrainTeacher {
    std::filesystem::path folder;  // empty: none
    double cross_entropy = 0;
};

// Low-rank adapters over frozen weights (train/lora.h) instead of training the weights; rank 0: none.
struct TrainLora {
    int64_t rank = 0;
    double alpha = 0;                  // 0: the rank
    std::vector<std::string> targets;  // last names of linears: "q_proj"; empty: all linears of blocks
    bool merge = true;                 // false: the run leaves the adapters alone, without a model
};

struct TrainConfig {
    std::filesystem::path model;      // a checkpoint to start from, or a folder or file with config.json (random start)
    bool random_start = false;        // weights by Philox though `model` has some
    std::string shape;                // instead of `model`: a built-in shape (train/train_shapes.h)
    int64_t layers = 0;               // of the shape; 0: its own
    std::filesystem::path tokenizer;  // a folder or tokenizer.json that goes into the export; empty: that of the data
    std::filesystem::path output;     // folder of the run: log, checkpoints, export
    bool resume = false;              // from the newest complete checkpoint in `output`
    std::filesystem::path fork;       // begins where another run's checkpoint ends, whatever its recipe

    uint64_t seed = 1;
    int64_t steps = 100, batch = 8, sequence = 256;  // rows of a step, tokens of a row
    TrainData data;
    TrainOptimizer optimizer;
    TrainSchedule schedule;
    TrainPrecision precision;
    TrainLora lora;
    TrainValidation validation;
    TrainSaving saving;
    TrainQuality quality;
    TrainTeacher teacher;
    Format export_format = Format::none;         // of a second export, in the codes of the training forward
    int64_t micro_batch = 0;                     // on a GPU: rows that go forward and back together; 0: what fits
    Recompute recompute = Recompute::automatic;  // on a GPU
    Sharding sharding = Sharding::states;        // of several GPUs
    GradientOrder order = GradientOrder::tree;   // of their gradients
    bool skip_nonfinite = false;  // false: a loss or gradient that is not finite ends the run; true: it is skipped
};

// The keys of the file, with their defaults and help; docs/training.md has the table.
const Schema<TrainConfig>& train_schema();
// Errors name file, line and key. What two keys must agree on is for check().
Result<TrainConfig> read_train_config(const std::filesystem::path& file,
                                      const std::vector<KeyOverride>& overrides = {});
Result<TrainConfig> parse_train_config(std::string_view yaml, std::string_view name,
                                       const std::vector<KeyOverride>& overrides = {});
// Keys that exclude or need each other; the error begins with `where`.
Status check(const TrainConfig& config, const std::string& where);
// The values that decide the bits of a run.
Json train_identity(const TrainConfig& config);
// Whether the bits of a step depend on the number of steps: through the schedule, or through a precision of the last
// part.
bool depends_on_length(const TrainConfig& config);
// The part of train_identity() that a resumed run must have in common with its checkpoint: `steps` only where the bits
// depend on it.
Json resume_identity(const TrainConfig& config);
// resume_identity() of the config that a run stored, whatever version of nibble wrote it: keys that it lacks have their
// defaults. Error: a key or value that this version does not know.
Result<Json> stored_train_identity(const Json& stored);

}  // namespace nibble
