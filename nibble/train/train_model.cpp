#include "train/train_model.h"

#include "architecture/config_json.h"
#include "chat/model_text.h"
#include "checkpoint/random_checkpoint.h"
#include "checkpoint/side_files.h"
#include "data/manifest.h"
#include "model/cpu/model.h"
#include "train/device_train_engine.h"
#include "train/train_shapes.h"
#include "train/trainer.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;

Result<Json> config_of_path(const fs::path& path) {
    return read_config(fs::is_directory(path) ? path / "config.json" : path);
}

Result<std::shared_ptr<Parameters>> first_weights(const TrainConfig& c, ThreadPool& pool) {
    const DType type = published_type(c.precision);
    std::shared_ptr<Parameters> parameters;
    if (!c.shape.empty()) {
        NIBBLE_TRY(Json config, train_shape(c.shape, c.layers));
        NIBBLE_TRY(parameters, random_start(std::move(config), type, c.seed, pool));
    } else if (c.random_start) {
        NIBBLE_TRY(Json config, config_of_path(c.model));
        NIBBLE_TRY(parameters, random_start(std::move(config), type, c.seed, pool).within(c.model.string()));
    } else {
        NIBBLE_TRY(const auto checkpoint, Checkpoint::open(c.model));
        NIBBLE_TRY(parameters, Parameters::copy(*checkpoint, type, pool).within(c.model.string()));
    }
    fs::path side = c.tokenizer;
    if (side.empty() && c.random_start && fs::is_directory(c.model)) side = c.model;
    if (!side.empty() && fs::is_directory(side)) {
        NIBBLE_TRY(auto files, list_side_files(side));
        parameters->set_side_files(std::move(files));
    } else if (!side.empty()) {
        parameters->set_side_files({{.name = "tokenizer.json", .copy_from = side}});
    }
    return parameters;
}

// Loads the teacher on a CPU.
Result<std::shared_ptr<const Model>> load_teacher(const TrainConfig& c, const std::string& kernels,
                                                  std::shared_ptr<const Checkpoint> checkpoint, ThreadPool& pool) {
    if (!checkpoint) return std::shared_ptr<const Model>();
    ModelOptions options;
    options.compute = c.precision.recipe == TrainRecipe::fp32 ? Compute::f32 : Compute::bf16;
    options.kernels = kernels;
    NIBBLE_TRY(Model model, Model::load(std::move(checkpoint), options, pool).within(c.teacher.folder.string()));
    return std::make_shared<const Model>(std::move(model));
}

}  // namespace

DType published_type(const TrainPrecision& precision) {
    return precision.recipe == TrainRecipe::fp32 ? DType::f32 : DType::bf16;
}

Result<std::unique_ptr<Checkpoint>> open_train_model(const TrainConfig& c) {
    if (!c.shape.empty()) {
        NIBBLE_TRY(Json config, train_shape(c.shape, c.layers));
        return random_checkpoint(std::move(config));
    }
    if (!c.random_start) return Checkpoint::open(c.model);
    NIBBLE_TRY(Json config, config_of_path(c.model));
    return random_checkpoint(std::move(config)).within(c.model.string());
}

Result<std::shared_ptr<const Checkpoint>> open_teacher(const TrainConfig& c) {
    if (c.teacher.folder.empty()) return std::shared_ptr<const Checkpoint>();
    NIBBLE_TRY(std::shared_ptr<const Checkpoint> checkpoint, Checkpoint::open(c.teacher.folder).within("teacher"));
    const fs::path own = c.tokenizer.empty() ? c.model : c.tokenizer;
    if (!own.empty() && !c.data.synthetic) {
        NIBBLE_TRY(const Tokenizer mine, open_tokenizer(own));
        NIBBLE_TRY(const Tokenizer other, open_tokenizer(c.teacher.folder).within("teacher"));
        if (vocabulary_hash(mine) != vocabulary_hash(other))
            return fail(ErrorKind::recipe, "teacher: {} has another vocabulary than {}", c.teacher.folder.string(),
                        own.string());
    }
    return checkpoint;
}

Result<std::unique_ptr<TrainEngine>> open_trainer(const TrainConfig& c, const TrainerSetup& setup, ThreadPool& pool) {
    NIBBLE_TRY(auto teacher, open_teacher(c));
    TrainerOptions options{.precision = c.precision,
                           .optimizer = c.optimizer,
                           .skip_nonfinite = c.skip_nonfinite,
                           .seed = c.seed,
                           .kernels = setup.kernels,
                           .cross_entropy = static_cast<float>(c.teacher.cross_entropy),
                           .lora = c.lora,
                           .cache = setup.cache,
                           .trace = setup.trace,
                           .ranks = setup.ranks};
    const bool cuda = setup.device.cuda;
    if (!cuda) {
        NIBBLE_TRY(options.teacher, load_teacher(c, setup.kernels, teacher, pool));
    }
    const DeviceTrainerOptions on_device{.train = options,
                                         .device = setup.device,
                                         .rows = c.batch,
                                         .seq = c.sequence,
                                         .micro_batch = c.micro_batch,
                                         .recompute = c.recompute,
                                         .teacher = cuda ? teacher : nullptr,
                                         .sharding = c.sharding,
                                         .order = c.order};
    std::unique_ptr<TrainEngine> trainer;
    if (c.lora.rank > 0) {
        NIBBLE_TRY(std::shared_ptr<const Checkpoint> base, Checkpoint::open(c.model));
        if (cuda) {
            NIBBLE_TRY(trainer, open_device_adapter_trainer(base, on_device, pool).within(c.model.string()));
        } else {
            NIBBLE_TRY(trainer, Trainer::create_adapters(base, options, pool).within(c.model.string()));
        }
        return trainer;
    }
    NIBBLE_TRY(auto parameters, first_weights(c, pool));
    if (cuda) {
        NIBBLE_TRY(trainer, open_device_trainer(std::move(parameters), on_device, pool));
    } else {
        NIBBLE_TRY(trainer, Trainer::create(std::move(parameters), options, pool));
    }
    return trainer;
}

}  // namespace nibble
