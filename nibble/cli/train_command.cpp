// `nibble train CONFIG.yaml`: pretraining and fine-tuning. `nibble train --shape NAME --synthetic`: one line to
// measure.
#include "base/utf8.h"
#include "chat/model_text.h"
#include "checkpoint/config_json.h"
#include "checkpoint/convert.h"
#include "checkpoint/output_place.h"
#include "checkpoint/random_checkpoint.h"
#include "checkpoint/side_files.h"
#include "checkpoint/source_files.h"
#include "cli/command.h"
#include "cli/options.h"
#include "cli/run_output.h"
#include "cli/terminal.h"
#include "cli/train_compare.h"
#include "cli/train_report.h"
#include "cli/trained_card.h"
#include "cli/usage.h"
#include "cli/version.h"
#include "data/manifest.h"
#include "data/source.h"
#include "io/atomic_file.h"
#include "io/journal.h"
#include "jobs/manifest.h"
#include "jobs/open_checkpoint.h"
#include "jobs/words.h"
#include "run/folder.h"
#include "run/rank_device.h"
#include "run/ranks.h"
#include "train/data_open.h"
#include "train/device_train_engine.h"
#include "train/host_plan.h"
#include "train/lora_export.h"
#include "train/train_run.h"
#include "train/train_shapes.h"
#include "train/trained_codes.h"
#include "train/trainer.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <cstdio>
#include <set>

namespace nibble {
namespace {

namespace fs = std::filesystem;

struct TrainFlags {
    std::string config, shape, precision, device = "cpu", kernels, output, command_line, card_command, profile, shard,
                                          order;
    std::optional<int64_t> steps, batch, seq, layers;
    std::vector<std::string> compare, set;
    bool synthetic = false, resume = false, quiet = false, json = false, check_forward = false, keys = false;
    ForwardQuestion question;  // of check_forward
    int threads = 0, ranks = 0, gpus = 0;
};

// The flags that stand for keys of the config.
Result<std::vector<KeyOverride>> overrides_of(const TrainFlags& flags) {
    std::vector<KeyOverride> list;
    for (const std::string& text : flags.set) {
        NIBBLE_TRY(auto one, key_override(text, "--set"));
        list.push_back(std::move(one));
    }
    const auto number = [&](const char* key, const std::optional<int64_t>& value, const char* flag) {
        if (value) list.push_back({key, std::to_string(*value), flag});
    };
    const auto text = [&](const char* key, const std::string& value, const char* flag) {
        if (!value.empty()) list.push_back({key, Json(value).dump(), flag});
    };
    number("steps", flags.steps, "--steps");
    number("batch", flags.batch, "--batch");
    number("sequence", flags.seq, "--seq");
    text("shape", flags.shape, "--shape");
    number("layers", flags.layers, "--layers");
    text("output", flags.output, "--output");
    text("parallel.shard", flags.shard, "--shard");
    text("parallel.order", flags.order, "--order");
    text("precision", flags.precision, "--precision");
    if (flags.resume) list.push_back({"resume", "true", "--resume"});
    if (flags.synthetic) list.push_back({"data.synthetic", "true", "--synthetic"});
    return list;
}

Result<TrainConfig> train_config(const TrainFlags& flags) {
    if (flags.config.empty() && !flags.synthetic)
        return fail("--shape: a shape has no text; measure it with --synthetic");
    NIBBLE_TRY(const auto overrides, overrides_of(flags));
    const std::string where = flags.config.empty() ? "--shape" : flags.config;
    NIBBLE_TRY(TrainConfig c, flags.config.empty() ? parse_train_config("steps: 10", where, overrides)
                                                   : read_train_config(flags.config, overrides));
    NIBBLE_CHECK(check(c, where));
    return c;
}

DType published(const TrainConfig& c) { return c.precision.recipe == TrainRecipe::fp32 ? DType::f32 : DType::bf16; }

Result<Json> config_json(const fs::path& path) {
    return read_config(fs::is_directory(path) ? path / "config.json" : path);
}

// Names and shapes of what is trained, before there are masters.
Result<std::unique_ptr<Checkpoint>> open_model(const TrainConfig& c) {
    if (!c.shape.empty()) {
        NIBBLE_TRY(Json config, train_shape(c.shape, c.layers));
        return random_checkpoint(std::move(config));
    }
    if (!c.random_start) return open_checkpoint(c.model, printing_hooks(false));
    NIBBLE_TRY(Json config, config_json(c.model));
    return random_checkpoint(std::move(config)).within(c.model.string());
}

// On a CPU: what it says of memory. Error: it does not fit.
Result<std::string> plan_memory(const TrainConfig& c, const JobRanks& ranks, ThreadPool& pool) {
    NIBBLE_TRY(const auto model, open_model(c));
    std::shared_ptr<const Checkpoint> teacher;
    if (!c.teacher.folder.empty()) {
        NIBBLE_TRY(teacher, Checkpoint::open(c.teacher.folder).within("teacher"));
    }
    const HostRun run{.rows = (c.batch + ranks.size() - 1) / ranks.size(),
                      .seq = c.sequence,
                      .saves = !c.output.empty() && c.saving.keep > 0 && ranks.first(),
                      .teacher = teacher.get(),
                      .ranks = ranks.size()};
    NIBBLE_TRY(const TrainMemoryPlan plan, plan_host_memory(c, *model, run, pool));
    NIBBLE_TRY(const HostTogether together, check_host_memory(plan, available_memory(), ranks.group()));
    return together.text(plan);
}

Result<std::shared_ptr<Parameters>> start(const TrainConfig& c, ThreadPool& pool) {
    std::shared_ptr<Parameters> parameters;
    if (!c.shape.empty()) {
        NIBBLE_TRY(Json config, train_shape(c.shape, c.layers));
        NIBBLE_TRY(parameters, random_start(std::move(config), published(c), c.seed, pool));
    } else if (c.random_start) {
        NIBBLE_TRY(Json config, config_json(c.model));
        NIBBLE_TRY(parameters, random_start(std::move(config), published(c), c.seed, pool).within(c.model.string()));
    } else {
        NIBBLE_TRY(const auto checkpoint, Checkpoint::open(c.model));
        NIBBLE_TRY(parameters, Parameters::copy(*checkpoint, published(c), pool).within(c.model.string()));
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

Result<std::unique_ptr<BatchSource>> text_source(const TrainConfig& c, const fs::path& file, bool shuffle,
                                                 std::string& hash) {
    NIBBLE_TRY(const Tokenizer tokenizer, open_tokenizer(c.tokenizer.empty() ? c.model : c.tokenizer));
    DocumentReader reader({file}, "");
    NIBBLE_TRY(const auto document, reader.next());
    if (!document) return fail("{}: has no text", file.string());
    if (document->row)
        return fail("{}: holds rows, not a text; 'nibble data build' makes a data.folder of it", file.string());
    const std::string_view text = document->text();
    NIBBLE_CHECK(check_utf8(text).within(file.string()));
    NIBBLE_TRY(auto ids, tokenizer.encode(text, {}));
    hash = hash_text(hash + hash_text(text) + vocabulary_hash(tokenizer));
    return window_source({ids.begin(), ids.end()}, c.sequence, c.seed, shuffle).within(file.string());
}

Result<DataSources> open_data(const TrainConfig& c, int64_t vocab) {
    DataSources s;
    if (c.data.synthetic) {
        s.train = synthetic_source(vocab, c.sequence, c.seed);
        if (!c.data.validation.empty()) return fail("data.validation: synthetic data has none");
        return s;
    }
    if (!c.data.folder.empty()) return open_data_folder(c, vocab);
    if (!c.data.cut_documents) return fail("data.cut_documents: a text has no documents to cut");
    if (c.tokenizer.empty() && c.model.empty()) return fail("data.text: 'tokenizer' says how the text becomes tokens");
    NIBBLE_TRY(s.train, text_source(c, c.data.text, true, s.hash));
    if (!c.data.validation.empty()) {
        NIBBLE_TRY(s.validation, text_source(c, c.data.validation, false, s.hash));
    }
    return s;
}

Result<DataSources> open_sources(const TrainConfig& c, int64_t vocab) {
    NIBBLE_TRY(DataSources s, open_data(c, vocab));
    if (c.validation.every > 0 && !s.validation)
        return fail("validation.every: there is no held-out data; give data.validation");
    return s;
}

// The teacher reads the student's tokens, so its tokenizer must be that of the data.
// Null: there is none.
Result<std::shared_ptr<const Checkpoint>> open_teacher(const TrainConfig& c) {
    if (c.teacher.folder.empty()) return std::shared_ptr<const Checkpoint>();
    const std::string folder = c.teacher.folder.string();
    NIBBLE_TRY(std::shared_ptr<const Checkpoint> checkpoint, Checkpoint::open(c.teacher.folder).within("teacher"));
    const fs::path own = c.tokenizer.empty() ? c.model : c.tokenizer;
    if (!own.empty() && !c.data.synthetic) {
        NIBBLE_TRY(const Tokenizer mine, open_tokenizer(own));
        NIBBLE_TRY(const Tokenizer other, open_tokenizer(c.teacher.folder).within("teacher"));
        if (vocabulary_hash(mine) != vocabulary_hash(other))
            return fail("teacher: the tokens of {} are not those of {}", folder, own.string());
    }
    return checkpoint;
}

Result<std::shared_ptr<const Model>> load_teacher(const TrainConfig& c, const TrainFlags& flags,
                                                  std::shared_ptr<const Checkpoint> checkpoint, ThreadPool& pool) {
    if (!checkpoint) return std::shared_ptr<const Model>();
    ModelOptions options;
    options.compute = c.precision.recipe == TrainRecipe::fp32 ? Compute::f32 : Compute::bf16;
    options.kernels = flags.kernels;
    NIBBLE_TRY(Model model, Model::load(std::move(checkpoint), options, pool).within(c.teacher.folder.string()));
    return std::make_shared<const Model>(std::move(model));
}

// What the run leaves at its end.
fs::path result_of(const TrainConfig& c) { return c.output / (c.lora.rank > 0 && !c.lora.merge ? "adapter" : "model"); }

fs::path codes_folder(const TrainConfig& c) { return c.output / fmt::format("model-{}", format_name(c.export_format)); }

Status check_export(const TrainConfig& c, TrainEngine& trainer) {
    if (c.export_format == Format::none) return Ok{};
    NIBBLE_TRY(const Format format, trainer.codes_format(c.steps));
    if (format != c.export_format)
        return fail("export.format: {}; the last forward products of this recipe are {}", format_name(c.export_format),
                    format_name(format));
    return RunFolder::check_codes(c.output, codes_folder(c), c.resume);
}

Status write_model(const TrainConfig& c, const TrainFlags& flags, TrainEngine& trainer, ThreadPool& pool) {
    const bool silent = flags.quiet || flags.json;
    const Manifest manifest{.command_line = flags.command_line, .settings = train_identity(c)};
    const TrainedCard card{.output = c.output,
                           .base = c.shape.empty() && !c.random_start ? c.model : fs::path{},
                           .how = "training",
                           .precision = std::string(train_precision_name(c.precision)),
                           .steps = c.steps,
                           .command = flags.card_command};
    if (c.export_format != Format::none) {
        NIBBLE_CHECK(RunFolder::clear_export(codes_folder(c), c.resume));
        NIBBLE_TRY(const auto codes, trainer.trained_codes(c.steps));
        NIBBLE_CHECK(convert(*codes,
                             {.to = codes->target(),
                              .out = codes_folder(c),
                              .manifest = to_text(manifest),
                              .card = trained_card(card, true)},
                             pool, {}));
        if (!silent) fmt::print("{}: the trained model in the codes of its last step\n", codes_folder(c).string());
    }
    NIBBLE_TRY(const auto model, trainer.trained());  // parameters() has the newest numbers from here on
    if (c.lora.rank > 0) {
        NIBBLE_CHECK(write_peft_adapter(c.output / "adapter", trainer.parameters(), c.lora, c.model));
        if (!silent) fmt::print("{}: the adapters, as PEFT reads them\n", (c.output / "adapter").string());
    }
    const fs::path out = result_of(c);
    if (c.lora.rank > 0 && !c.lora.merge) return Ok{};
    NIBBLE_CHECK(RunFolder::clear_export(out, c.resume));
    NIBBLE_CHECK(
        convert(*model, {.out = out, .manifest = to_text(manifest), .card = trained_card(card, false)}, pool, {}));
    if (!silent) fmt::print("{}: the trained model\n", out.string());
    return Ok{};
}

// Before anything is computed: the file is written last.
Status check_profile(const std::string& file, int64_t steps) {
    if (file.empty()) return Ok{};
    NIBBLE_CHECK(check_output_file(file).within("--profile"));
    if (steps < 5) return fail("--profile looks at the third to fifth step; this run makes {}", steps);
    return Ok{};
}

Status check_output(const TrainConfig& c, const std::string& where) {
    if (!c.output.empty()) {
        const std::string next =
            fmt::format("{}begin a new run from it with 'fork: {}', or choose another output",
                        depends_on_length(c) ? "" : "go on to more steps with --resume, ", c.output.string());
        NIBBLE_TRY(const auto model, open_model(c));
        return RunFolder::check_result(c.output, result_of(c), c.resume,
                                       planned_run_bytes(*model, c.saving, c.lora.rank > 0), next);
    }
    const char* needs = c.resume                          ? "resume"
                        : !c.fork.empty()                 ? "fork"
                        : c.saving.every > 0              ? "saving.every"
                        : c.export_format != Format::none ? "export.format"
                                                          : nullptr;
    if (needs) return fail("{}: needs an output folder: 'output', or -o DIR", needs);
    if (c.data.synthetic) return Ok{};  // a measurement
    return fail("{}: 'output' is missing, so the trained model would be lost; add it, or give -o DIR", where);
}

// What runs that differ by their seed alone have in common.
std::string group_of(const TrainConfig& c, const std::string& data) {
    TrainConfig like = c;
    like.seed = 0;
    return fmt::format("{} {:.8}", train_precision_name(c.precision), hash_text(train_identity(like).dump() + data));
}

// `facts`: "config", "data", and hashes of frozen weights.
RunIdentity run_identity(Json facts) {
    std::string text = facts.dump();
    return {.text = std::move(text), .restate = [facts = std::move(facts)](const Json& stored) -> Result<Json> {
                Json today = stored;
                if (!stored.contains("config")) return fail("is no state of nibble train");
                NIBBLE_TRY(today["config"], stored_train_identity(stored["config"]));
                // Until commit 8d459c62 frozen weights had no hash.
                for (const char* key : {"base", "teacher"})
                    if (facts.contains(key) && !today.contains(key)) today[key] = facts[key];
                return today;
            }};
}

Result<RunFolderOptions> folder_options(const TrainConfig& c, const TrainFlags& flags, const DataSources& sources,
                                        const TrainEngine& trainer, const JobHooks& hooks) {
    Json identity{{"config", resume_identity(c)}, {"data", sources.hash}};
    if (const std::string arithmetic = trainer.arithmetic(); !arithmetic.empty()) identity["arithmetic"] = arithmetic;
    // Weights that a step reads and no checkpoint of the run holds.
    const std::pair<const char*, fs::path> frozen[] = {{"base", c.lora.rank > 0 ? c.model : fs::path()},
                                                       {"teacher", c.teacher.folder}};
    for (const auto& [name, folder] : frozen) {
        if (folder.empty()) continue;
        NIBBLE_TRY(const auto weights, Checkpoint::open(folder));
        NIBBLE_TRY(identity[name], source_hash(*weights));
    }
    return RunFolderOptions{.folder = c.output,
                            .resume = c.resume,
                            .steps = c.steps,
                            .identity = run_identity(std::move(identity)),
                            .fork = c.fork,
                            .another_run = fmt::format("to begin a new run from its state, give another output and "
                                                       "'fork: {}'",
                                                       c.output.string()),
                            .about = {{"name", fs::absolute(c.output).lexically_normal().filename().string()},
                                      {"group", group_of(c, sources.hash)},
                                      {"command", flags.command_line},
                                      {"parameters", trainer.parameters().elements()},
                                      {"config", train_identity(c)}},
                            .saving = c.saving,
                            .warn = hooks.warn};
}

// What is trained, and what every linear's three products are in fact.
void print_start(const TrainConfig& c, TrainEngine& trainer, const std::string& memory = {}) {
    fmt::print(
        "{} parameters, {} steps of {} x {} tokens, precision {}; FLOP as MaxText counts (causal attention at one "
        "half)\n",
        trainer.parameters().elements(), c.steps, c.batch, c.sequence, train_precision_name(c.precision));
    if (const int64_t most = trainer.config().context; most > 0 && c.sequence > most)
        fmt::print(
            "  warning: rows of {} tokens, the model says {} (max_position_embeddings), which goes into the export\n",
            c.sequence, most);
    print_train_table(trainer);
    if (!memory.empty()) fmt::print("  memory: {}\n", memory);
    print_fp4_savings(trainer, c);
}

Result<std::unique_ptr<TrainEngine>> make_trainer(const TrainConfig& c, const TrainFlags& flags,
                                                  const DeviceChoice& device, Trace* trace, RankGroup* ranks,
                                                  ThreadPool& pool) {
    NIBBLE_TRY(auto teacher, open_teacher(c));
    TrainerOptions options{.precision = c.precision,
                           .optimizer = c.optimizer,
                           .skip_nonfinite = c.skip_nonfinite,
                           .seed = c.seed,
                           .kernels = flags.kernels,
                           .cross_entropy = static_cast<float>(c.teacher.cross_entropy),
                           .lora = c.lora,
                           .cache = cache_of(flags.question),
                           .trace = trace,
                           .ranks = ranks};
    if (!device.cuda) {
        NIBBLE_TRY(options.teacher, load_teacher(c, flags, teacher, pool));
    }
    const DeviceTrainerOptions on_device{.train = options,
                                         .device = device,
                                         .rows = c.batch,
                                         .seq = c.sequence,
                                         .micro_batch = c.micro_batch,
                                         .recompute = c.recompute,
                                         .teacher = device.cuda ? teacher : nullptr,
                                         .sharding = c.sharding,
                                         .order = c.order};
    std::unique_ptr<TrainEngine> trainer;
    if (c.lora.rank > 0) {
        NIBBLE_TRY(std::shared_ptr<const Checkpoint> base, Checkpoint::open(c.model));
        if (device.cuda) {
            NIBBLE_TRY(trainer, open_device_adapter_trainer(base, on_device, pool).within(c.model.string()));
        } else {
            NIBBLE_TRY(trainer, Trainer::create_adapters(base, options, pool).within(c.model.string()));
        }
        return trainer;
    }
    NIBBLE_TRY(auto parameters, start(c, pool));
    if (device.cuda) {
        NIBBLE_TRY(trainer, open_device_trainer(std::move(parameters), on_device, pool));
    } else {
        NIBBLE_TRY(trainer, Trainer::create(std::move(parameters), options, pool));
    }
    return trainer;
}

Status write_profile(const TrainFlags& flags, const Trace& trace) {
    NIBBLE_CHECK(write_file_atomically(flags.profile, trace.to_json().dump() + "\n").within(flags.profile));
    if (!flags.quiet && !flags.json)
        fmt::print("{}: {} spans of three steps, for chrome://tracing or ui.perfetto.dev\n", flags.profile,
                   trace.spans());
    return Ok{};
}

// The state that rank 0 begins with, in the others. All read it the same way, which exchanges numbers between ranks.
Status begin_as_first(const JobRanks& ranks, const RunFolder* folder, const RunFolderOptions& options,
                      TrainEngine& trainer, BatchSource& data, int64_t& first_step) {
    if (!ranks.group()) return Ok{};
    std::string file = folder ? folder->began_with().string() : "";
    if (!file.empty()) file += folder->forked() ? 'f' : 'r';
    const auto* bytes = reinterpret_cast<const std::byte*>(file.data());
    NIBBLE_TRY(const RankBytes shared, ranks.group()->share({bytes, bytes + file.size()}));
    if (ranks.first() || shared.empty()) return Ok{};
    file.assign(reinterpret_cast<const char*>(shared.data()), shared.size());
    const bool forked = file.back() == 'f';
    file.pop_back();
    NIBBLE_TRY(const RunPlace place, forked ? read_fork(file, trainer) : read_state(file, options.identity, trainer));
    first_step = place.step;
    return data.set_place(place.source).within(file);
}

Result<Outcome> train(const TrainConfig& config, const TrainFlags& flags, const DeviceChoice& device,
                      const JobRanks& ranks) {
    NIBBLE_CHECK(check(flags.question, config));
    if (ranks.group() && flags.check_forward) return fail("--check-forward: one process compares; leave out --ranks");
    const bool speaks = ranks.first() && !flags.quiet && !flags.json;
    Trace trace;
    Trace* const traced = flags.profile.empty() || !ranks.first() ? nullptr : &trace;
    ThreadPool pool(ranks.threads(flags.threads));
    std::string memory;  // on a CPU
    if (!device.cuda && !flags.check_forward) {
        NIBBLE_TRY(memory, plan_memory(config, ranks, pool));
    }
    NIBBLE_TRY(const auto trainer, make_trainer(config, flags, device, traced, ranks.group(), pool));
    if (!flags.check_forward) NIBBLE_CHECK(check_export(config, *trainer));
    NIBBLE_TRY(DataSources sources, open_sources(config, trainer->config().vocab));
    if (flags.check_forward && speaks) print_start(config, *trainer);
    if (flags.check_forward)
        return report_forward(flags.json, flags.quiet, *trainer, *sources.train, config, flags.question);
    Console console(true);
    std::unique_ptr<RunFolder> folder;
    int64_t first_step = 0;
    if (!config.output.empty()) {
        NIBBLE_TRY(const auto options, folder_options(config, flags, sources, *trainer, console.hooks()));
        if (ranks.first()) {
            NIBBLE_TRY(folder, RunFolder::open(options, *trainer, *sources.train));
            first_step = folder->first_step();
        }
        NIBBLE_CHECK(begin_as_first(ranks, folder.get(), options, *trainer, *sources.train, first_step));
    }
    NIBBLE_TRY(const bool ended, ended_earlier(folder.get(), result_of(config), first_step, config.steps, *trainer));
    if (ended && speaks) print_ended_earlier(result_of(config), config.steps);
    if (ended) return Outcome{};
    NIBBLE_CHECK(check_profile(flags.profile, config.steps - first_step));
    if (speaks) print_start(config, *trainer, memory);
    if (speaks && ranks.group()) fmt::print("  {} ranks, the rows of a step dealt to them\n", ranks.size());
    if (speaks) print_where_it_begins(config.output, config.resume, first_step);
    int64_t skipped = 0;
    double learned = 0;  // weight of all labels
    RunHooks hooks{.on_step = [&](const StepReport& r) -> Status {
                       if (!ranks.first()) return Ok{};
                       skipped += r.result.skipped;
                       learned += r.result.weight;
                       if (folder) folder->after_step(step_json(r, trainer->memory_gib()), *trainer, *sources.train);
                       if (flags.json)
                           fmt::print("{}", json_line(step_json(r, trainer->memory_gib())));
                       else if (!flags.quiet)
                           print_step(r, trainer->memory_gib());
                       return Ok{};
                   },
                   .stop_requested = console.hooks().stop_requested,
                   .first_step = first_step,
                   .trace = traced};
    const bool was_due = config.validation.every > 0 && first_step > 0 && first_step % config.validation.every == 0;
    if (const auto line = folder && was_due ? folder->line_without("validation") : std::nullopt)
        hooks.on_owed_validation = [&, line = *line](double loss) mutable -> Status {
            line["validation"] = loss;
            folder->amend(line);
            return Ok{};
        };
    NIBBLE_TRY(const int64_t done, run_training(config, *trainer, *sources.train, sources.validation.get(), hooks));
    if (skipped > 0 && speaks)
        fmt::print("{} step{} left out: not finite, outliers, or without a token that is learned\n", skipped,
                   skipped == 1 ? " was" : "s were");
    if (folder) NIBBLE_CHECK(folder->finish(done, *trainer, *sources.train));
    if (ranks.first() && done == config.steps && done > first_step && learned == 0)
        return fail("no token was learned in {} steps: no row had a label that the loss counts", done - first_step);
    if (ranks.first() && done == config.steps && !config.output.empty())
        NIBBLE_CHECK(write_model(config, flags, *trainer, pool));
    NIBBLE_CHECK(trainer->sync());
    if (traced) NIBBLE_CHECK(write_profile(flags, trace));  // last: a profile that cannot be written costs no model
    if (done < config.steps && ranks.first())
        return fail("stopped after {} of {} steps; {}", done, config.steps,
                    !folder           ? "nothing was written"
                    : folder->saves() ? "resume it with --resume"
                                      : "no state was saved");
    return Outcome{};
}

Result<Outcome> run_train(TrainFlags flags) {
    if (flags.gpus > 0) {
        flags.ranks = flags.gpus;
        if (flags.device == "cpu") flags.device = "cuda";
    }
    NIBBLE_TRY(DeviceChoice device, parse_device(flags.device));
    NIBBLE_TRY(const TrainConfig config, train_config(flags));
    NIBBLE_TRY(const RankPlace place, rank_place());
    if (!device.cuda && (config.sharding == Sharding::all || config.order == GradientOrder::free))
        return fail("parallel.{} is for GPUs; use --device cuda",
                    config.sharding == Sharding::all ? "shard: all" : "order: free");
    if (device.cuda) NIBBLE_CHECK(check_device_precision(config.precision));
    if (device.cuda) NIBBLE_CHECK(choose_rank_device(flags.ranks, place, device));
    if (place.rank == 0 && !flags.check_forward)
        NIBBLE_CHECK(check_output(config, flags.config.empty() ? "--shape" : flags.config));
    NIBBLE_CHECK(check_profile(flags.profile, config.steps));
    const std::string among = fmt::format("\nparallel {} {}", config.sharding == Sharding::all ? "all" : "states",
                                          config.order == GradientOrder::free ? "free" : "tree");
    NIBBLE_TRY(const JobRanks ranks, JobRanks::join(flags.ranks, {.identity = version_text() + "\n" +
                                                                              train_identity(config).dump() + among}));
    NIBBLE_CHECK(check_own_devices(device, ranks.group()));
    auto outcome = train(config, flags, device, ranks);
    if (ranks.first()) return outcome;
    return std::move(outcome).within(fmt::format("rank {}", ranks.rank()));
}

// Options beside `one` that would have no effect.
void refuse_all_but(const CLI::App& command, const CLI::Option& one, const std::set<std::string>& allowed) {
    for (const CLI::Option* o : command.get_options())
        if (o->count() > 0 && !allowed.contains(o->get_name())) throw CLI::ExcludesError(one.get_name(), o->get_name());
}

}  // namespace

void add_train(CLI::App& app, RunCommand& run) {
    auto flags = std::make_shared<TrainFlags>();
    CLI::App* command = app.add_subcommand("train", "pretraining and fine-tuning on the engine's own forward");
    CLI::Option* config = command->add_option("config", flags->config, "a YAML file (docs/training.md)");
    CLI::Option* shape =
        command->add_option("--shape", flags->shape, "measure a model of this shape instead: 60m, 124m, 350m, 1b ...");
    shape->excludes(config);
    CLI::Option* compare =
        command->add_option("--compare", flags->compare, "instead: runs side by side; -o PAGE.html draws them")
            ->excludes(config)
            ->excludes(shape);
    command->add_flag("--synthetic", flags->synthetic, "tokens by chance instead of data")->needs(shape);
    command->add_option("--layers", flags->layers, "fewer layers than the shape has")
        ->needs(shape)
        ->check(CLI::Range(1, 1000));
    command->add_option("--precision", flags->precision, "the recipe of the products; overrides the config");
    command->add_option("--steps", flags->steps, "overrides the config")
        ->check(CLI::Range(int64_t{1}, int64_t{1} << 40));
    command->add_option("--batch", flags->batch, "rows of a step; overrides the config")->check(CLI::Range(1, 1 << 20));
    command->add_option("--seq", flags->seq, "tokens of a row; overrides the config")->check(CLI::Range(1, 1 << 24));
    command->add_option("--set", flags->set, "KEY=VALUE sets one key of the config; may be given several times")
        ->allow_extra_args(false);
    CLI::Option* keys =
        command->add_flag("--keys", flags->keys, "prints every key of a config: values, default, meaning");
    CLI::Option* check_forward = command->add_flag(
        "--check-forward", flags->check_forward,
        "no training: compare the bits of log-probabilities with the engine's, exit status 1 if they differ");
    command->add_option("--kv", flags->question.kv, "of --check-forward: how both sides cache K and V")
        ->needs(check_forward)
        ->check(one_of({"bf16", "fp8", "fp8_q", "fp8_page"}))
        ->capture_default_str();
    command->add_flag("--late", flags->question.late, "of --check-forward: the products of late_forward")
        ->needs(check_forward);
    command->add_option("-o,--output", flags->output, "folder of the run; overrides the config");
    command->add_flag("--resume", flags->resume, "go on from the newest checkpoint in the output");
    CLI::Option* ranks =
        command
            ->add_option(
                "--ranks", flags->ranks,
                "so many processes deal the rows of a step, on GPUs one each; default: what mpirun or srun started")
            ->check(CLI::Range(1, 4096));
    command->add_option("--gpus", flags->gpus, "the same on so many GPUs")->check(CLI::Range(1, 4096))->excludes(ranks);
    command
        ->add_option("--shard", flags->shard,
                     "what several GPUs share out: states, or all (weights and gradients, too); overrides the config")
        ->check(CLI::IsMember({"states", "all"}));
    command
        ->add_option("--order", flags->order,
                     "how several GPUs add gradients: tree (the bits of one), or free (NCCL's); overrides the config")
        ->check(CLI::IsMember({"tree", "free"}));
    command->add_option("--profile", flags->profile,
                        "what the third to fifth step spend their time on, a Chrome trace");
    add_device_flag(*command, flags->device);
    add_kernels_flag(*command, flags->kernels, "forces the CPU kernels: avx512, avx2, ref");
    add_threads_flag(*command, flags->threads);
    add_json_flag(*command, flags->json);
    add_quiet_flag(*command, flags->quiet);
    command->footer(
        "Examples:\n"
        "  nibble train config.yaml\n"
        "  nibble train --compare runs/bf16 runs/nvfp4 -o gap.html\n"
        "  nibble train --shape 124m --synthetic --precision nvfp4 --steps 5 --batch 2 --seq 256");
    command->callback([flags, command, config, shape, compare, keys, check_forward, &run] {
        if (keys->count() > 0) {
            refuse_all_but(*command, *keys, {"--keys"});
            run = []() -> Result<Outcome> {
                fmt::print("{}", keys_as_text(train_schema().reference()));
                return Outcome{};
            };
            return;
        }
        if (config->count() + shape->count() + compare->count() == 0) throw CLI::RequiredError("config");
        if (compare->count() > 0) refuse_all_but(*command, *compare, {"--compare", "--output", "--json", "--quiet"});
        if (check_forward->count() > 0)
            for (const char* other : {"--resume", "--profile"})
                if (command->count(other) > 0) throw CLI::ExcludesError("--check-forward", other);
        flags->command_line = command_line_of(*command);
        flags->card_command = command_for_card(*command);
        if (compare->count() > 0) {
            run = [flags]() -> Result<Outcome> {
                NIBBLE_CHECK(compare_runs(flags->compare, flags->output, flags->json));
                return Outcome{};
            };
            return;
        }
        run = [flags] { return run_train(*flags); };
    });
}

}  // namespace nibble
