#include "train/train_config.h"

#include "base/json.h"
#include "io/yaml_fields.h"

#include <nlohmann/json.hpp>

#include <array>
#include <cmath>
#include <fstream>
#include <iterator>
#include <utility>

namespace nibble {
namespace {

constexpr std::array<std::pair<std::string_view, ScheduleKind>, 4> schedule_kinds{
    {{"cosine", ScheduleKind::cosine},
     {"wsd", ScheduleKind::wsd},
     {"linear", ScheduleKind::linear},
     {"constant", ScheduleKind::constant}}};

Status read_schedule_kind(const YamlNode& node, const std::string& name, ScheduleKind& to) {
    NIBBLE_TRY(const std::string word, as_text(node, name));
    for (const auto& [known, kind] : schedule_kinds)
        if (known == word) {
            to = kind;
            return Ok{};
        }
    return fail("{}: {} must be cosine, wsd, linear or constant, not '{}'", node.where(), name, word);
}

// Whether it is the second of two words.
Result<bool> read_choice(const YamlNode& node, const std::string& name, std::string_view first,
                         std::string_view second) {
    NIBBLE_TRY(const std::string word, as_text(node, name));
    if (word != first && word != second)
        return fail("{}: {} must be {} or {}, not '{}'", node.where(), name, first, second, word);
    return word == second;
}

// A folder, or {folder, cross_entropy}.
Status read_teacher(const YamlNode& node, const std::string& name, TrainTeacher& to) {
    if (node.is_map()) NIBBLE_CHECK(check_keys(node, name, {"folder", "cross_entropy"}));
    const YamlNode* folder = node.is_map() ? node.find("folder") : &node;
    if (!folder) return fail("{}: {} has no 'folder'", node.where(), name);
    NIBBLE_TRY(to.folder, as_text(*folder, name));
    if (to.folder.empty()) return fail("{}: {} names no folder", node.where(), name);
    if (const YamlNode* share = node.is_map() ? node.find("cross_entropy") : nullptr) {
        NIBBLE_TRY(to.cross_entropy, as_number(*share, name + ".cross_entropy"));
        if (!(to.cross_entropy >= 0 && to.cross_entropy <= 1))
            return fail("{}: {}.cross_entropy must be from 0 to 1", share->where(), name);
    }
    return Ok{};
}

}  // namespace

Status check(const TrainConfig& c, const std::string& where) {
    const int models = !c.model.empty() + !c.shape.empty();
    if (models != 1) return fail("{}: give one of 'model' and 'shape'", where);
    if (c.layers > 0 && c.shape.empty()) return fail("{}: 'layers' belongs to 'shape'", where);
    const int data = !c.data.folder.empty() + !c.data.text.empty() + c.data.synthetic;
    if (data != 1) return fail("{}: give one of data.folder, data.text and data.synthetic", where);
    if (c.lora.rank > 0 && (c.model.empty() || c.random_start))
        return fail("{}: lora: adapters go over the weights of a 'model'", where);
    if (c.lora.rank > 0 && c.precision.recipe != TrainRecipe::bf16 && c.precision.recipe != TrainRecipe::fp32)
        return fail("{}: lora: precision {} is for weights that are trained; adapters take bf16 or fp32", where,
                    train_precision_name(c.precision));
    if (c.lora.rank > 0 && c.export_format != Format::none)
        return fail("{}: export: adapters train no codes; quantize OUTPUT/model instead", where);
    if (c.lora.rank > 0 && c.optimizer.kind == OptimizerKind::muon)
        return fail("{}: lora: muon is for matrices of the model; adapters take adamw", where);
    if (c.schedule.warmup > c.steps)
        return fail("{}: {} steps of warm-up in {} steps", where, c.schedule.warmup, c.steps);
    return Ok{};
}

Result<TrainConfig> parse_train_config(std::string_view yaml, std::string_view name) {
    const std::string file(name);
    NIBBLE_TRY(const auto documents, parse_yaml(yaml, file));
    if (documents.size() != 1 || !documents[0].is_map()) return fail("{}: a config is one map of keys", file);
    const YamlNode& root = documents[0];
    NIBBLE_CHECK(
        check_keys(root, "the config",
                   {"model",     "random_start", "shape",   "layers",         "tokenizer",   "output",    "resume",
                    "seed",      "steps",        "batch",   "sequence",       "data",        "optimizer", "schedule",
                    "precision", "validation",   "saving",  "skip_nonfinite", "micro_batch", "recompute", "teacher",
                    "export",    "lora",         "quality", "fork",           "parallel"}));
    TrainConfig c;
    YamlFields top(root, "");
    top.path("model", c.model);
    top.flag("random_start", c.random_start);
    top.text("shape", c.shape);
    top.count("layers", 1, c.layers);
    top.path("tokenizer", c.tokenizer);
    top.path("output", c.output);
    top.flag("resume", c.resume);
    top.path("fork", c.fork);
    auto seed = static_cast<int64_t>(c.seed);
    top.count("seed", 0, seed);
    c.seed = static_cast<uint64_t>(seed);
    top.count("steps", 1, c.steps);
    top.count("batch", 1, c.batch);
    top.count("sequence", 1, c.sequence);
    top.flag("skip_nonfinite", c.skip_nonfinite);
    top.count("micro_batch", 1, c.micro_batch);
    top.read("recompute", [&](const YamlNode& node, const std::string& key) -> Status {
        NIBBLE_TRY(const bool block, read_choice(node, key, "none", "block"));
        c.recompute = block ? Recompute::block : Recompute::none;
        return Ok{};
    });
    top.map("parallel", {"shard", "order"}, [&](YamlFields& m) {
        m.read("shard", [&](const YamlNode& node, const std::string& key) -> Status {
            NIBBLE_TRY(const bool all, read_choice(node, key, "states", "all"));
            c.sharding = all ? Sharding::all : Sharding::states;
            return Ok{};
        });
        m.read("order", [&](const YamlNode& node, const std::string& key) -> Status {
            NIBBLE_TRY(const bool free, read_choice(node, key, "tree", "free"));
            c.order = free ? GradientOrder::free : GradientOrder::tree;
            return Ok{};
        });
    });
    top.map("data", {"folder", "text", "synthetic", "cut_documents", "validation"}, [&](YamlFields& m) {
        m.path("folder", c.data.folder);
        m.path("text", c.data.text);
        m.flag("synthetic", c.data.synthetic);
        m.flag("cut_documents", c.data.cut_documents);
        m.path("validation", c.data.validation);
    });
    top.map("optimizer",
            {"kind", "states", "momentum", "learning_rate", "beta1", "beta2", "epsilon", "weight_decay", "clip",
             "skip_above", "skip_window", "outliers"},
            [&](YamlFields& m) {
                m.read("kind", [&](const YamlNode& node, const std::string& key) -> Status {
                    NIBBLE_TRY(const bool muon, read_choice(node, key, "adamw", "muon"));
                    c.optimizer.kind = muon ? OptimizerKind::muon : OptimizerKind::adamw;
                    return Ok{};
                });
                m.read("states", [&](const YamlNode& node, const std::string& key) -> Status {
                    NIBBLE_TRY(c.optimizer.bf16_states, read_choice(node, key, "f32", "bf16"));
                    return Ok{};
                });
                m.number("momentum", 0, 1 - 1e-9, c.optimizer.momentum);
                m.number("learning_rate", 0, 10, c.optimizer.learning_rate);
                m.number("beta1", 0, 1 - 1e-9, c.optimizer.beta1);
                m.number("beta2", 0, 1 - 1e-9, c.optimizer.beta2);
                m.number("epsilon", 1e-30, 1, c.optimizer.epsilon);
                m.number("weight_decay", 0, 100, c.optimizer.weight_decay);
                m.number("clip", 0, 1e30, c.optimizer.clip);
                m.read("skip_above", [&](const YamlNode& node, const std::string& key) -> Status {
                    NIBBLE_TRY(c.optimizer.skip_above, as_number(node, key));
                    if (c.optimizer.skip_above != 0 && !(c.optimizer.skip_above > 1))
                        return fail("{}: {} must be above 1, or 0 for none", node.where(), key);
                    return Ok{};
                });
                m.count("skip_window", 1, c.optimizer.skip_window);
                m.read("outliers", [&](const YamlNode& node, const std::string& key) -> Status {
                    NIBBLE_TRY(c.optimizer.stop_at_outlier, read_choice(node, key, "skip", "stop"));
                    return Ok{};
                });
                if (c.optimizer.kind != OptimizerKind::muon) m.no_effect("momentum", "without kind: muon");
                if (!(c.optimizer.skip_above > 0))
                    for (const auto* key : {"skip_window", "outliers"}) m.no_effect(key, "without skip_above");
            });
    top.map("schedule", {"kind", "warmup", "decay_fraction", "final_fraction"}, [&](YamlFields& m) {
        m.read("kind", [&](const YamlNode& node, const std::string& key) {
            return read_schedule_kind(node, key, c.schedule.kind);
        });
        m.count("warmup", 0, c.schedule.warmup);
        m.number("decay_fraction", 0, 1, c.schedule.decay_fraction);
        m.number("final_fraction", 0, 1, c.schedule.final_fraction);
        if (c.schedule.kind != ScheduleKind::wsd) m.no_effect("decay_fraction", "without kind: wsd");
        if (c.schedule.kind == ScheduleKind::constant) m.no_effect("final_fraction", "with kind: constant");
    });
    top.read("precision", [&](const YamlNode& node, const std::string& key) -> Status {
        NIBBLE_TRY(c.precision, read_train_precision(node, key));
        return Ok{};
    });
    top.map("lora", {"rank", "alpha", "targets", "merge"}, [&](YamlFields& m) {
        c.lora.rank = 16;
        m.count("rank", 1, c.lora.rank);
        m.number("alpha", 1e-6, 1e6, c.lora.alpha);
        m.flag("merge", c.lora.merge);
        m.read("targets", [&](const YamlNode& node, const std::string& key) -> Status {
            if (!node.is_list() || node.items.empty()) return fail("{}: {} must be a list of names", node.where(), key);
            for (const YamlNode& item : node.items) {
                NIBBLE_TRY(std::string word, as_text(item, key));
                c.lora.targets.push_back(std::move(word));
            }
            return Ok{};
        });
        if (c.lora.alpha == 0) c.lora.alpha = static_cast<double>(c.lora.rank);
    });
    top.map("validation", {"every", "batches"}, [&](YamlFields& m) {
        m.count("every", 0, c.validation.every);
        m.count("batches", 1, c.validation.batches);
    });
    top.map("quality", {"every"}, [&](YamlFields& m) {
        int64_t every = -1;
        m.count("every", 0, every);
        if (every >= 0) c.quality.every = every;
    });
    top.read("teacher", [&](const YamlNode& node, const std::string& key) -> Status {
        return read_teacher(node, key, c.teacher);
    });
    top.map("export", {"format"}, [&](YamlFields& m) {
        m.read("format", [&](const YamlNode& node, const std::string& key) -> Status {
            NIBBLE_TRY(const std::string word, as_text(node, key));
            const auto format = format_from_name(word);
            if (!format || (*format != Format::nvfp4 && *format != Format::mxfp8 && *format != Format::fp8_block128))
                return fail("{}: {} must be nvfp4, mxfp8 or fp8_block128, not '{}'", node.where(), key, word);
            c.export_format = *format;
            return Ok{};
        });
    });
    top.map("saving", {"every", "keep", "keep_every"}, [&](YamlFields& m) {
        m.count("every", 0, c.saving.every);
        m.count("keep", 0, c.saving.keep);
        m.count("keep_every", 0, c.saving.keep_every);
        if (c.saving.keep == 0) m.no_effect("every", "beside keep: 0");
        if (c.saving.every == 0) m.no_effect("keep_every", "without every");
    });
    NIBBLE_CHECK(top.status());
    return c;
}

Result<TrainConfig> read_train_config(const std::filesystem::path& file) {
    std::error_code error;
    const auto size = std::filesystem::file_size(file, error);
    if (error) return fail("{}: cannot be read: {}", file.string(), error.message());
    if (size > max_yaml_bytes)
        return fail("{}: {} bytes; a config has at most {}", file.string(), size, max_yaml_bytes);
    std::ifstream in(file, std::ios::binary);
    const std::string text{std::istreambuf_iterator<char>(in), {}};
    if (!in) return fail("{}: cannot be read", file.string());
    return parse_train_config(text, file.string());
}

namespace {

Json identity_json(const TrainConfig& c) {
    Json json{{"model", c.model.string()},
              {"random_start", c.random_start},
              {"shape", c.shape},
              {"layers", c.layers},
              {"seed", c.seed},
              {"steps", c.steps},
              {"batch", c.batch},
              {"sequence", c.sequence},
              {"data",
               {{"folder", c.data.folder.string()},
                {"text", c.data.text.string()},
                {"synthetic", c.data.synthetic},
                {"cut_documents", c.data.cut_documents}}},
              {"optimizer",
               {{"learning_rate", c.optimizer.learning_rate},
                {"beta1", c.optimizer.beta1},
                {"beta2", c.optimizer.beta2},
                {"epsilon", c.optimizer.epsilon},
                {"weight_decay", c.optimizer.weight_decay},
                {"clip", c.optimizer.clip}}},
              {"schedule",
               {{"kind", schedule_kinds[static_cast<size_t>(c.schedule.kind)].first},
                {"warmup", c.schedule.warmup},
                {"decay_fraction", c.schedule.decay_fraction},
                {"final_fraction", c.schedule.final_fraction}}},
              {"precision", train_precision_json(c.precision)},
              {"skip_nonfinite", c.skip_nonfinite}};
    if (c.order == GradientOrder::free) json["order"] = "free";
    if (c.optimizer.kind == OptimizerKind::muon) {
        json["optimizer"]["kind"] = "muon";
        json["optimizer"]["momentum"] = c.optimizer.momentum;
    }
    if (c.optimizer.skip_above > 0) {
        json["optimizer"]["skip_above"] = c.optimizer.skip_above;
        json["optimizer"]["skip_window"] = c.optimizer.skip_window;
    }
    if (c.optimizer.bf16_states) json["optimizer"]["states"] = "bf16";
    if (!c.teacher.folder.empty())
        json["teacher"] = {{"folder", c.teacher.folder.string()}, {"cross_entropy", c.teacher.cross_entropy}};
    if (c.lora.rank > 0) json["lora"] = {{"rank", c.lora.rank}, {"alpha", c.lora.alpha}, {"targets", c.lora.targets}};
    return json;
}

}  // namespace

std::string train_identity(const TrainConfig& c) { return identity_json(c).dump(); }

bool depends_on_length(const TrainConfig& c) {
    const TrainSchedule& s = c.schedule;
    const bool flat = s.kind == ScheduleKind::constant || s.final_fraction == 1 ||
                      (s.kind == ScheduleKind::wsd && s.decay_fraction == 0);
    const bool late_part = c.precision.late_forward && c.precision.late_step < 0;
    return !flat || late_part;
}

Json resume_identity(const TrainConfig& c) {
    Json json = identity_json(c);
    if (!depends_on_length(c)) json.erase("steps");
    return json;
}

}  // namespace nibble
