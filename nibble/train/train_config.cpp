#include "train/train_config.h"

#include "base/mapped_file.h"

#include <nlohmann/json.hpp>

namespace nibble {
namespace {

Schema<TrainConfig> make_train_schema() {
    using C = TrainConfig;
    using O = TrainOptimizer;
    Schema<C> s;
    s.key("model", path_kind(), at(&C::model),
          "checkpoint to start from, in BF16, F16 or F32; with lora also a quantized one");
    s.key("random_start", flag_kind(), at(&C::random_start),
          "start from random weights (Philox) with the shape of model (nibble/train/train_shapes.h)");
    s.key("shape", text_kind(), at(&C::shape), "instead of model: a built-in shape with random weights");
    s.key("layers", count_kind(1), at(&C::layers), "number of layers, instead of the shape's own")
        .says("those of shape")
        .needs([](const C& c) { return c.layers > 0 && !c.shape.empty(); }, "without shape");
    s.key("tokenizer", path_kind(), at(&C::tokenizer),
          "folder or tokenizer.json that reads data.text and goes into the export")
        .says("that of model or data.folder")
        .keeps_bits();
    s.key("output", path_kind(), at(&C::output),
          "folder of the run; required unless data.synthetic only measures the speed")
        .keeps_bits();
    s.key("resume", flag_kind(), at(&C::resume), "continue from the newest checkpoint in output, as --resume")
        .keeps_bits();
    s.key("fork", path_kind(), at(&C::fork),
          "checkpoint, or folder of another run (its newest checkpoint), whose parameters, optimizer state, place in "
          "the "
          "data and step this run starts from; recipe and schedule may differ, the data and the kind of optimizer not")
        .keeps_bits();
    s.key("seed", seed_kind(), at(&C::seed), "seed of random weights, of the order of data and of stochastic rounding");
    s.key("steps", count_kind(1), at(&C::steps),
          "optimizer steps; may change when a run resumes if no learning rate or precision depends on the number");
    s.key("batch", count_kind(1), at(&C::batch), "rows of a step");
    s.key("sequence", count_kind(1), at(&C::sequence), "tokens of a row");
    s.key("data.folder", path_kind(), at(&C::data, &TrainData::folder),
          "token shards from nibble data build; their validation split is the validation data");
    s.key("data.text", path_kind(), at(&C::data, &TrainData::text),
          "UTF-8 text file, plain or .gz, cut into windows of sequence tokens in a random order");
    s.key("data.synthetic", flag_kind(), at(&C::data, &TrainData::synthetic), "random tokens");
    s.key("data.cut_documents", flag_kind(), at(&C::data, &TrainData::cut_documents),
          "attention and labels end at documents");
    s.key("data.validation", path_kind(), at(&C::data, &TrainData::validation),
          "validation data: a folder like data.folder, or a text read in order")
        .keeps_bits();
    s.key("optimizer.kind", word_kind<OptimizerKind>({{"adamw", OptimizerKind::adamw}, {"muon", OptimizerKind::muon}}),
          at(&C::optimizer, &O::kind), "muon: for the matrices of blocks; other parameters use AdamW");
    s.key("optimizer.states", word_kind<bool>({{"f32", false}, {"bf16", true}}), at(&C::optimizer, &O::bf16_states),
          "type of the stored moments");
    s.key("optimizer.momentum", number_kind(0, 1 - 1e-9), at(&C::optimizer, &O::momentum), "momentum of Muon")
        .needs([](const C& c) { return c.optimizer.kind == OptimizerKind::muon; }, "without kind: muon");
    s.key("optimizer.learning_rate", number_kind(0, 10), at(&C::optimizer, &O::learning_rate),
          "highest learning rate of the schedule");
    s.key("optimizer.beta1", number_kind(0, 1 - 1e-9), at(&C::optimizer, &O::beta1), "decay of AdamW's first moment");
    s.key("optimizer.beta2", number_kind(0, 1 - 1e-9), at(&C::optimizer, &O::beta2), "decay of AdamW's second moment");
    s.key("optimizer.epsilon", number_kind(1e-30, 1), at(&C::optimizer, &O::epsilon),
          "added to the root of AdamW's second moment");
    s.key("optimizer.weight_decay", number_kind(0, 100), at(&C::optimizer, &O::weight_decay),
          "decoupled weight decay of matrices");
    s.key("optimizer.clip", number_kind(0, 1e30), at(&C::optimizer, &O::clip),
          "largest norm of the gradient over all parameters; 0: no limit");
    ValueKind<double> factor = number_kind(0, 1e30);
    factor.text = "0, or a number above 1";
    factor.read = [read = factor.read](const YamlNode& node, const std::string& name) -> Result<double> {
        NIBBLE_TRY(const double value, read(node, name));
        if (value != 0 && value <= 1) return fail("{}: {} must be above 1, or 0 for none", node.where(), name);
        return value;
    };
    s.key("optimizer.skip_above", factor, at(&C::optimizer, &O::skip_above),
          "a step whose gradient norm is larger than this factor times the median of earlier steps is an outlier; 0: "
          "none is");
    const auto skips = [](const C& c) { return c.optimizer.skip_above > 0; };
    s.key("optimizer.skip_window", count_kind(1), at(&C::optimizer, &O::skip_window),
          "number of earlier steps in that median")
        .needs(skips, "without skip_above");
    s.key("optimizer.outliers", word_kind<bool>({{"skip", false}, {"stop", true}}),
          at(&C::optimizer, &O::stop_at_outlier), "leave out the step of an outlier, or stop the run")
        .keeps_bits()
        .needs(skips, "without skip_above");
    s.key("schedule.kind",
          word_kind<ScheduleKind>({{"cosine", ScheduleKind::cosine},
                                   {"wsd", ScheduleKind::wsd},
                                   {"linear", ScheduleKind::linear},
                                   {"constant", ScheduleKind::constant}}),
          at(&C::schedule, &TrainSchedule::kind), "how the learning rate falls after the warm-up");
    s.key("schedule.warmup", count_kind(0), at(&C::schedule, &TrainSchedule::warmup),
          "steps in which the learning rate rises from 0");
    s.key("schedule.decay_fraction", number_kind(0, 1), at(&C::schedule, &TrainSchedule::decay_fraction),
          "share of the steps, at the end, in which the learning rate falls by 1 - sqrt")
        .needs([](const C& c) { return c.schedule.kind == ScheduleKind::wsd; }, "without kind: wsd");
    s.key("schedule.final_fraction", number_kind(0, 1), at(&C::schedule, &TrainSchedule::final_fraction),
          "learning rate of the last step, as a share of the highest")
        .needs([](const C& c) { return c.schedule.kind != ScheduleKind::constant; }, "with kind: constant");
    s.group("precision", train_precision_schema(), at(&C::precision));
    s.shorthand("precision", "recipe");
    const auto adapts = [](const C& c) { return c.lora.rank > 0; };
    s.key("lora.rank", count_kind(1), at(&C::lora, &TrainLora::rank),
          "rank of low-rank adapters that are trained instead of the weights")
        .says("no adapters; 16 where lora is given")
        .needs(adapts, "at 0");
    s.key("lora.alpha", number_kind(1e-6, 1e6), at(&C::lora, &TrainLora::alpha),
          "the adapters' product is multiplied by alpha / rank")
        .says("rank")
        .needs(adapts, "without rank");
    s.key("lora.targets", list_kind(text_kind(), "names", 1), at(&C::lora, &TrainLora::targets),
          "last names of the linears that get adapters, such as q_proj")
        .says("all linears of blocks")
        .needs(adapts, "without rank");
    s.key("lora.merge", flag_kind(), at(&C::lora, &TrainLora::merge),
          "write model/ with merged weights; false: write only adapter/")
        .keeps_bits()
        .needs(adapts, "without rank");
    s.key("validation.every", count_kind(0), at(&C::validation, &TrainValidation::every),
          "steps between validations; 0: only at the end")
        .keeps_bits();
    s.key("validation.batches", count_kind(1), at(&C::validation, &TrainValidation::batches), "batches of a validation")
        .keeps_bits();
    s.key("quality.every", optional_kind(count_kind(0)), at(&C::quality, &TrainQuality::every),
          "steps between measurements of the rounding errors of quantized operands; 0: none")
        .says("50; on a GPU 0")
        .keeps_bits();
    s.key("teacher.folder", path_kind(), at(&C::teacher, &TrainTeacher::folder),
          "checkpoint of the teacher, for distillation");
    s.key("teacher.cross_entropy", number_kind(0, 1), at(&C::teacher, &TrainTeacher::cross_entropy),
          "weight of the labels' cross-entropy; the rest is that of the divergence from the teacher")
        .needs([](const C& c) { return !c.teacher.folder.empty(); }, "without folder");
    s.shorthand("teacher", "folder");
    s.key("export.format",
          word_kind<Format>(
              {{"nvfp4", Format::nvfp4}, {"mxfp8", Format::mxfp8}, {"fp8_block128", Format::fp8_block128}}),
          at(&C::export_format), "also write the model in the codes of the training forward pass")
        .keeps_bits();
    s.key("saving.every", count_kind(0), at(&C::saving, &TrainSaving::every),
          "steps between checkpoints; 0: only after the last step")
        .keeps_bits()
        .needs([](const C& c) { return c.saving.keep > 0; }, "with keep: 0");
    s.key("saving.keep", count_kind(0), at(&C::saving, &TrainSaving::keep),
          "number of newest checkpoints to keep; 0: write none")
        .keeps_bits();
    s.key("saving.keep_every", count_kind(0), at(&C::saving, &TrainSaving::keep_every),
          "also keep every checkpoint whose step this number divides; 0: no other")
        .keeps_bits()
        .needs([](const C& c) { return c.saving.every > 0; }, "without every");
    s.key("micro_batch", count_kind(1), at(&C::micro_batch), "on a GPU: rows that are computed together")
        .says("as many as fit")
        .keeps_bits();
    s.key("recompute", word_kind<Recompute>({{"none", Recompute::none}, {"block", Recompute::block}}),
          at(&C::recompute), "on a GPU: activations that the backward pass recomputes")
        .says("automatic")
        .keeps_bits();
    s.key("parallel.shard", word_kind<Sharding>({{"states", Sharding::states}, {"all", Sharding::all}}),
          at(&C::sharding), "what GPUs share: optimizer states, or weights and gradients too")
        .keeps_bits();
    s.key("parallel.order", word_kind<GradientOrder>({{"tree", GradientOrder::tree}, {"free", GradientOrder::free}}),
          at(&C::order), "how GPUs add gradients: tree, with the bits of one GPU, or free, in NCCL's order");
    s.key("skip_nonfinite", flag_kind(), at(&C::skip_nonfinite),
          "leave out a step whose loss or gradient is not finite; false: it ends the run");
    return s;
}

// Sets defaults that depend on other keys.
void complete(const GivenKeys& given, TrainConfig& c) {
    if (given.has_group("lora") && c.lora.rank == 0) c.lora.rank = 16;
    if (c.lora.rank > 0 && c.lora.alpha == 0) c.lora.alpha = static_cast<double>(c.lora.rank);
}

}  // namespace

const Schema<TrainConfig>& train_schema() {
    static const Schema<TrainConfig> schema = make_train_schema();
    return schema;
}

Status check(const TrainConfig& c, const std::string& where) {
    const int models = !c.model.empty() + !c.shape.empty();
    if (models != 1) return fail("{}: give exactly one of 'model' and 'shape'", where);
    if (c.layers > 0 && c.shape.empty()) return fail("{}: 'layers' needs 'shape'", where);
    const int data = !c.data.folder.empty() + !c.data.text.empty() + c.data.synthetic;
    if (data != 1) return fail("{}: give exactly one of data.folder, data.text and data.synthetic", where);
    if (c.lora.rank > 0 && (c.model.empty() || c.random_start))
        return fail("{}: lora: adapters need a 'model' with weights", where);
    if (c.lora.rank > 0 && c.precision.recipe != TrainRecipe::bf16 && c.precision.recipe != TrainRecipe::fp32)
        return fail("{}: lora: precision {} cannot train adapters; use bf16 or fp32", where,
                    train_precision_name(c.precision));
    if (c.lora.rank > 0 && c.export_format != Format::none)
        return fail("{}: export: adapters have no codes of training; quantize OUTPUT/model instead", where);
    if (c.lora.rank > 0 && c.optimizer.kind == OptimizerKind::muon)
        return fail("{}: lora: muon cannot train adapters; use adamw", where);
    if (c.schedule.warmup > c.steps)
        return fail("{}: {} warm-up steps are more than the {} steps of the run", where, c.schedule.warmup, c.steps);
    return Ok{};
}

Result<TrainConfig> parse_train_config(std::string_view yaml, std::string_view name,
                                       const std::vector<KeyOverride>& overrides) {
    NIBBLE_TRY(YamlNode root, parse_config_map(yaml, std::string(name)));
    TrainConfig c;
    NIBBLE_CHECK(train_schema().set(root, overrides));
    NIBBLE_TRY(const GivenKeys given, train_schema().read(root, c));
    complete(given, c);
    return c;
}

Result<TrainConfig> read_train_config(const std::filesystem::path& file, const std::vector<KeyOverride>& overrides) {
    std::error_code ignored;
    if (std::filesystem::is_directory(file, ignored))
        return fail(
            "{}: is a folder; give a YAML file that says 'model: {}' and which data to train on "
            "(docs/topics/training.md)",
            file.string(), file.string());
    NIBBLE_TRY(const std::string text, read_text_file(file, max_yaml_bytes));
    return parse_train_config(text, file.string(), overrides);
}

Json train_identity(const TrainConfig& c) { return train_schema().identity(c); }

bool depends_on_length(const TrainConfig& c) {
    const TrainSchedule& s = c.schedule;
    const bool flat = s.kind == ScheduleKind::constant || s.final_fraction == 1 ||
                      (s.kind == ScheduleKind::wsd && s.decay_fraction == 0);
    const bool late_part = c.precision.late_forward && c.precision.late_step < 0;
    return !flat || late_part;
}

Json resume_identity(const TrainConfig& c) {
    Json json = train_identity(c);
    if (!depends_on_length(c)) json.erase("steps");
    return json;
}

Result<Json> stored_train_identity(const Json& stored) {
    Json today = stored;
    // Before commit 8d459c62 the order of gradients was a top-level key.
    if (today.contains("order")) {
        today["parallel"]["order"] = today["order"];
        today.erase("order");
    }
    if (today.contains("layers") && today["layers"] == 0) today.erase("layers");  // 0 meant that no number was given
    TrainConfig c;
    const YamlNode root = yaml_from_json(today, "stored config");
    NIBBLE_TRY(const GivenKeys given, train_schema().read_stored(root, c));
    complete(given, c);
    return resume_identity(c);
}

}  // namespace nibble
