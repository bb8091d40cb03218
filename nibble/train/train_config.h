// The configuration of a training run.
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

// The learning rate of a step relative to TrainOptimizer::learning_rate: it rises from 0 to 1 over `warmup` steps, then
// falls by `kind` to `final_fraction`.
struct TrainSchedule {
    ScheduleKind kind = ScheduleKind::cosine;
    int64_t warmup = 0;           // steps
    double decay_fraction = 0.2;  // wsd: share of the steps, at the end, that decay as 1 - sqrt
    double final_fraction = 0.1;  // share of the learning rate that remains at the last step
};

enum class OptimizerKind : uint8_t { adamw, muon };

struct TrainOptimizer {
    OptimizerKind kind = OptimizerKind::adamw;  // muon: for matrices of blocks (train/optimizer.h)
    bool bf16_states = false;                   // false: FP32
    double momentum = 0.95;                     // momentum of muon
    double learning_rate = 3e-4;
    double beta1 = 0.9, beta2 = 0.95, epsilon = 1e-8;
    double weight_decay = 0.1;     // decoupled; of matrices only
    double clip = 1.0;             // limit of the gradient's global norm; 0: no limit
    double skip_above = 0;         // skips a step whose norm exceeds this times the median of recent norms; 0: never
    int64_t skip_window = 64;      // number of recent norms
    bool stop_at_outlier = false;  // stops the run instead of skipping the step
};

struct TrainData {
    std::filesystem::path folder;      // folder made by `nibble data build`
    std::filesystem::path text;        // alternative: one text file, cut into windows of `sequence` tokens
    bool synthetic = false;            // alternative: random tokens (Philox)
    bool cut_documents = true;         // attention ends at document boundaries and positions restart there
    std::filesystem::path validation;  // another folder or text; empty: the validation split of `folder`, if any
};

struct TrainSaving {
    int64_t every = 0;       // steps; 0: only at the end
    int64_t keep = 2;        // number of latest checkpoints to keep; 0: no checkpoint is written
    int64_t keep_every = 0;  // also keeps checkpoints whose step is a multiple of this; 0: none
};

struct TrainValidation {
    int64_t every = 0;    // steps; 0: only at the end
    int64_t batches = 8;  // batches of `batch` rows each
};

struct TrainQuality {
    // Steps between measurements of rounding errors (train/cast_quality.h); 0: never; absent:
    // TrainEngine::usual_look().
    std::optional<int64_t> every;
};

// Distillation: the loss of a label is (1 - cross_entropy) KL(teacher || model) + cross_entropy * -log p(label).
struct TrainTeacher {
    std::filesystem::path folder;  // empty: no teacher
    double cross_entropy = 0;
};

// Trains low-rank adapters over frozen weights (train/lora.h) instead of the weights; rank 0: off.
struct TrainLora {
    int64_t rank = 0;
    double alpha = 0;                  // 0: equal to the rank
    std::vector<std::string> targets;  // last names of linears, such as "q_proj"; empty: all linears of blocks
    bool merge = true;                 // false: exports only the adapters, not a merged model
};

struct TrainConfig {
    std::filesystem::path model;      // a checkpoint to start from, or a folder or file with config.json (random start)
    bool random_start = false;        // random weights (Philox) even if `model` has weights
    std::string shape;                // a built-in shape instead of `model` (train/train_shapes.h)
    int64_t layers = 0;               // number of layers of the shape; 0: the shape's own
    std::filesystem::path tokenizer;  // a folder or tokenizer.json for the export; empty: the tokenizer of the data
    std::filesystem::path output;     // folder of the run: log, checkpoints, export
    bool resume = false;              // continues from the newest complete checkpoint in `output`
    std::filesystem::path fork;       // starts from another run's checkpoint, whatever its recipe

    uint64_t seed = 1;
    int64_t steps = 100, batch = 8, sequence = 256;  // batch: rows per step; sequence: tokens per row
    TrainData data;
    TrainOptimizer optimizer;
    TrainSchedule schedule;
    TrainPrecision precision;
    TrainLora lora;
    TrainValidation validation;
    TrainSaving saving;
    TrainQuality quality;
    TrainTeacher teacher;
    Format export_format = Format::none;         // format of a second export in the codes of the training forward pass
    int64_t micro_batch = 0;                     // GPU: rows that are computed together; 0: as many as fit in memory
    Recompute recompute = Recompute::automatic;  // GPU only
    Sharding sharding = Sharding::states;        // with several GPUs
    GradientOrder order = GradientOrder::tree;   // order of adding gradients of several GPUs
    bool skip_nonfinite = false;  // skips a step whose loss or gradient is not finite; false: such a step ends the run
};

// Returns the keys of the file with their defaults and help texts. docs/reference/train-keys.md has the table.
const Schema<TrainConfig>& train_schema();
// Errors name file, line and key. Combinations of keys are validated by check().
Result<TrainConfig> read_train_config(const std::filesystem::path& file,
                                      const std::vector<KeyOverride>& overrides = {});
Result<TrainConfig> parse_train_config(std::string_view yaml, std::string_view name,
                                       const std::vector<KeyOverride>& overrides = {});
// Returns an error, prefixed with `where`, for keys that exclude or require each other.
Status check(const TrainConfig& config, const std::string& where);
// Returns the values that determine the bits of a run.
Json train_identity(const TrainConfig& config);
// Returns true if the bits of a step depend on the number of steps: through the schedule, or through a precision for
// the last part of the run.
bool depends_on_length(const TrainConfig& config);
// Returns the part of train_identity() in which a resumed run must agree with its checkpoint. It contains `steps` only
// if the bits depend on it.
Json resume_identity(const TrainConfig& config);
// Returns resume_identity() of a stored config, whatever version of nibble wrote it. Missing keys have their defaults.
// Error: a key or value that this version does not know.
Result<Json> stored_train_identity(const Json& stored);

}  // namespace nibble
