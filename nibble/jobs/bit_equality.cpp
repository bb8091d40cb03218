#include "jobs/bit_equality.h"

#include "jobs/job.h"
#include "kernels/attention_control.h"
#include "rl/rank_lab.h"
#include "train/device_train_engine.h"
#include "train/train_shapes.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <memory>
#include <optional>

namespace nibble {
namespace {

struct LabRecipe {
    std::string name;
    TrainPrecision precision;
};

// Recipes for rollouts; those that guarantee equal bits come first.
constexpr std::array lab_names{"bf16",        "fp32",       "fp8_block", "mxfp8", "nvfp4_row_scaled",
                               "nvfp4_w4a16", "nvfp4_w4a4", "fp8",       "nvfp4"};
constexpr size_t promising = 7;

Result<std::vector<LabRecipe>> lab_recipes(const BitEqualityOptions& flags, bool cuda) {
    std::vector<LabRecipe> list;
    const auto add = [&](const std::string& name) -> Status {
        if (std::ranges::find(lab_names, name) == lab_names.end())
            return fail("--recipe {}: choose one of: {}", name, fmt::join(lab_names, ", "));
        LabRecipe r{.name = name};
        const bool rows = name == "nvfp4_row_scaled";
        NIBBLE_TRY(r.precision, train_precision_from_name(rows ? "nvfp4" : name).within("--recipe"));
        r.precision.row_scaled = rows;
        list.push_back(std::move(r));
        return Ok{};
    };
    std::vector<std::string> names = flags.recipes;
    if (names.empty() && cuda) names = {"bf16"};
    if (names.empty()) names.assign(lab_names.begin(), lab_names.begin() + promising);
    for (const std::string& name : names) NIBBLE_CHECK(add(name));
    return list;
}

// Returns a new copy of the model's parameters.
Result<std::shared_ptr<Parameters>> lab_parameters(const BitEqualityOptions& flags, DType published, ThreadPool& pool) {
    if (!flags.shape.empty()) {
        NIBBLE_TRY(Json config, train_shape(flags.shape, flags.layers));
        return random_start(std::move(config), published, 1, pool);
    }
    NIBBLE_TRY(const auto checkpoint, Checkpoint::open(flags.model));
    return Parameters::copy(*checkpoint, published, pool).within(flags.model);
}

Result<TrainCache> lab_cache(const std::string& kv) {
    TrainCache cache;
    cache.queries = kv == "fp8_q";
    if (kv == "fp8" || cache.queries) cache.format = KvFormat::fp8;
    if (kv != "bf16" && cache.format == KvFormat::none) return fail("--kv {}: choose one of: bf16, fp8, fp8_q", kv);
    return cache;
}

MismatchOptions lab_options(const BitEqualityOptions& flags) {
    return {.prompts = flags.prompts,
            .sampling = {.temperature = static_cast<float>(flags.temperature),
                         .top_k = flags.top_k,
                         .top_p = static_cast<float>(flags.top_p)}};
}

// Size of the batches of a trainer on a GPU.
struct LabShape {
    int64_t rows = 0, seq = 0, micro_batch = 0;
};

// Returns a trainer with the options `like` and new parameters. If `nudged_scale` is given, one parameter is changed:
// one that changes a scale (true), or one that changes only a code (false).
Result<std::unique_ptr<TrainEngine>> lab_trainer(const BitEqualityOptions& flags, const std::string& kv,
                                                 TrainerOptions like, const LabShape& shape,
                                                 const std::optional<bool>& nudged_scale, ThreadPool& pool) {
    NIBBLE_TRY(like.cache, lab_cache(kv));
    like.kernels = flags.kernels;
    const bool fp32 = like.precision.recipe == TrainRecipe::fp32;
    NIBBLE_TRY(auto parameters, lab_parameters(flags, fp32 ? DType::f32 : DType::bf16, pool));
    if (nudged_scale) nudge(*parameters, *nudged_scale, pool);
    std::unique_ptr<TrainEngine> trainer;
    if (flags.device.cuda) {
        NIBBLE_TRY(trainer, open_device_trainer(std::move(parameters),
                                                {.train = like,
                                                 .device = flags.device,
                                                 .rows = shape.rows,
                                                 .seq = shape.seq,
                                                 .micro_batch = shape.micro_batch},
                                                pool));
    } else {
        NIBBLE_TRY(trainer, Trainer::create(std::move(parameters), like, pool));
    }
    return trainer;
}

// Makes the trainer of one recipe, with the first scales of an FP8 cache.
Result<std::unique_ptr<TrainEngine>> calibrated_trainer(const BitEqualityOptions& flags, const std::string& kv,
                                                        const TrainPrecision& precision, const MismatchOptions& options,
                                                        const std::optional<bool>& nudged_scale, ThreadPool& pool) {
    const LabShape shape{.rows = 4, .seq = mismatch_row_tokens(options), .micro_batch = 4};
    NIBBLE_TRY(auto trainer, lab_trainer(flags, kv, {.precision = precision, .sampling = options.sampling}, shape,
                                         nudged_scale, pool));
    NIBBLE_CHECK(calibrate_lab(*trainer, options));
    return trainer;
}

Json line_json(const MismatchLine& l) {
    return {{"batch", l.batch},           {"way", l.way},     {"rows", l.rows},     {"tokens", l.tokens},
            {"mismatches", l.mismatches}, {"apart", l.apart}, {"events", l.events}, {"other_ids", l.other_ids}};
}

std::string table_head() {
    return fmt::format("{:<18} {:<6} {:>5}  {:<11} {:<7} {:>8} {:>10}", "recipe", "kv", "batch", "rollout", "rows",
                       "tokens", "mismatches");
}

std::string table_line(const std::string& recipe, const std::string& kv, const MismatchLine& l) {
    return fmt::format("{:<18} {:<6} {:>5}  {:<11} {:<7} {:>8} {:>10}{}", recipe, kv, l.batch, l.way, l.rows, l.tokens,
                       l.mismatches, l.mismatches ? fmt::format("  largest difference {:.3g}", l.apart) : "");
}

enum class Control : uint8_t { code, scale, input_scale, cache_scale, query_scale, splits };
constexpr std::array control_names{"one code",
                                   "one scale",
                                   "one scale of inputs",
                                   "one scale of the KV cache",
                                   "one scale of queries",
                                   "the length of attention's splits"};

struct LabRun {
    const BitEqualityOptions& flags;
    const std::function<void(std::string_view)>& sink;
    ThreadPool& pool;
    BitEqualityReport found;

    void say(std::string_view line) const {
        if (sink) sink(line);
    }

    Status run(const LabRecipe& recipe, const std::string& kv) {
        const MismatchOptions options = lab_options(flags);
        NIBBLE_TRY(const auto trainer, calibrated_trainer(flags, kv, recipe.precision, options, {}, pool));
        NIBBLE_TRY(const auto own, trainer->serving());
        NIBBLE_TRY(const MismatchReport report, measure_mismatch(*trainer, own, options));
        if (found.recipes.empty()) say(table_head());
        for (const MismatchLine& l : report.lines) say(table_line(recipe.name, kv, l));
        found.broken += report.promised && report.mismatches() > 0;
        Json lines = Json::array(), controls = Json::array();
        for (const MismatchLine& l : report.lines) lines.push_back(line_json(l));
        std::vector<Control> list{Control::code, Control::scale};
        if (recipe.precision.stored_inputs) list.push_back(Control::input_scale);
        if (const CacheScales* cache = trainer->cache_scales()) {
            list.push_back(Control::cache_scale);
            if (cache->sides() > 2) list.push_back(Control::query_scale);
        }
        // Rounding to BF16 after attention may hide the effect of a split; GPU kernels have only one split length.
        if (recipe.precision.recipe == TrainRecipe::fp32 && !flags.device.cuda) list.push_back(Control::splits);
        for (const Control c : list) NIBBLE_CHECK(control(recipe, kv, c, *trainer, controls));
        Json ranks = Json::object();
        if (compares_ranks(recipe)) NIBBLE_CHECK(several(recipe, kv, ranks));
        found.recipes.push_back({{"recipe", recipe.name},
                                 {"kv", kv},
                                 {"promised", report.promised},
                                 {"tokens", report.tokens()},
                                 {"mismatches", report.mismatches()},
                                 {"lines", lines},
                                 {"ranks", ranks},
                                 {"controls", controls}});
        return Ok{};
    }

    bool compares_ranks(const LabRecipe& recipe) const {
        const TrainPrecision& p = recipe.precision;  // several ranks do not support recipes that scale whole tensors
        return flags.ranks && p.recipe != TrainRecipe::fp8 &&
               (p.recipe != TrainRecipe::nvfp4 || p.row_scaled || p.weights_only || p.stored_inputs);
    }

    Result<RankLabRun> loop(const LabRecipe& recipe, const std::string& kv, RankGroup* ranks, bool nudged) {
        const MismatchOptions options = lab_options(flags);
        const RlConfig config = rank_lab_config(options);
        const int64_t row = rank_lab_row_tokens(config);
        const int64_t most = most_rollout_rows(config.prompts * config.generations, config.length, row);
        const auto rows = static_cast<uint64_t>(std::max<int64_t>(most, ranks ? ranks->size() : 1));
        const LabShape shape{.rows = static_cast<int64_t>(std::bit_ceil(rows)), .seq = row, .micro_batch = 1};
        const std::optional<bool> code = nudged ? std::optional(false) : std::nullopt;
        NIBBLE_TRY(const auto trainer, lab_trainer(flags, kv,
                                                   {.precision = recipe.precision,
                                                    .optimizer = config.optimizer,
                                                    .sampling = options.sampling,
                                                    .ranks = ranks},
                                                   shape, code, pool));
        return run_rank_lab(*trainer, config, options, ranks, flags.device.cuda);
    }

    // Runs all ranks together; rank 0 gets the numbers of the others. Then runs again with one changed code in the last
    // rank's model: the rollouts of that rank must differ.
    Status several(const LabRecipe& recipe, const std::string& kv, Json& json) {
        RankGroup* const group = flags.ranks;
        const bool first = group->rank() == 0, last = group->rank() == group->size() - 1;
        RankLabRun alone;
        if (first) {
            NIBBLE_TRY(alone, loop(recipe, kv, nullptr, false));
        }
        const std::string way = fmt::format("{} ranks", group->size());
        for (const bool nudged : {false, true}) {
            NIBBLE_TRY(const RankLabRun together, loop(recipe, kv, group, nudged && last));
            if (!first) continue;
            const auto lines = compare_rank_runs(alone, together, way);
            int64_t mismatches = 0;
            for (const MismatchLine& l : lines) mismatches += l.mismatches;
            if (nudged)
                found.unseen += lines[0].mismatches == 0;
            else
                found.broken += mismatches > 0;
            if (nudged) {
                json["control"] = {{"control", "one code of the last rank"},
                                   {"tokens", lines[0].tokens},
                                   {"mismatches", lines[0].mismatches}};
                say(fmt::format("{:<18} {:<6} control: one code of the last rank was changed: {} of {} tokens differ",
                                recipe.name, kv, lines[0].mismatches, lines[0].tokens));
            } else {
                json["size"] = group->size();
                for (const MismatchLine& l : lines) json["lines"].push_back(line_json(l));
                for (const MismatchLine& l : lines) say(table_line(recipe.name, kv, l));
            }
        }
        return Ok{};
    }

    // Negative control: rollouts come from a changed model, and the comparison must detect it.
    Status control(const LabRecipe& recipe, const std::string& kv, Control what, TrainEngine& trainer, Json& controls) {
        MismatchOptions one = lab_options(flags);
        one.prompts = std::min<int64_t>(flags.prompts, 16), one.batches = {0};
        std::optional<bool> nudged;
        if (what == Control::code || what == Control::scale) nudged = what == Control::scale;
        NIBBLE_TRY(const auto other, calibrated_trainer(flags, kv, recipe.precision, one, nudged, pool));
        if (const CacheScales* cache = trainer.cache_scales()) {
            std::vector<float> scales = cache->state();
            if (what == Control::cache_scale) scales[1] *= 1.01f;  // the scale of V in the first block
            if (what == Control::query_scale) scales[2] *= 1.01f;
            NIBBLE_CHECK(other->set_cache_scales(scales));
        }
        if (recipe.precision.stored_inputs) {
            NIBBLE_TRY(std::vector<float> scales, trainer.recipe().input_scales());
            if (what == Control::input_scale) scales[0] *= 1.01f;
            NIBBLE_CHECK(other->recipe().set_input_scales(scales));
        }
        NIBBLE_TRY(const auto generator, other->serving());
        if (what == Control::splits) generator->workspace().attention = &attention_in_half_splits();
        NIBBLE_TRY(const MismatchReport report, measure_mismatch(trainer, generator, one));
        const char* name = control_names[static_cast<size_t>(what)];
        controls.push_back({{"control", name}, {"tokens", report.tokens()}, {"mismatches", report.mismatches()}});
        found.unseen += report.mismatches() == 0;
        say(fmt::format("{:<18} {:<6} control: {} was changed in the generator: {} of {} tokens differ", recipe.name,
                        kv, name, report.mismatches(), report.tokens()));
        return Ok{};
    }
};

Result<BitEqualityReport> compare_all(const BitEqualityOptions& options,
                                      const std::function<void(std::string_view)>& say) {
    if (options.model.empty() == options.shape.empty())
        return fail(ErrorKind::usage, "--mismatch: give a model or --shape");
    NIBBLE_TRY(const auto recipes, lab_recipes(options, options.device.cuda));
    ThreadPool pool(options.threads);
    LabRun lab{options, say, pool, {}};
    const bool first = !options.ranks || options.ranks->rank() == 0;
    const auto caches = options.kv.empty() ? std::vector<std::string>{"bf16", "fp8"} : std::vector{options.kv};
    for (const LabRecipe& recipe : recipes)
        for (const std::string& kv : caches) {
            if (first) {
                NIBBLE_CHECK(lab.run(recipe, kv));
            } else if (lab.compares_ranks(recipe)) {
                Json unused;
                NIBBLE_CHECK(lab.several(recipe, kv, unused).within(fmt::format("rank {}", options.ranks->rank())));
            }
        }
    return std::move(lab.found);
}

}  // namespace

Result<BitEqualityReport> check_bit_equality(const BitEqualityOptions& options,
                                             const std::function<void(std::string_view)>& say) {
    return as_job([&] { return compare_all(options, say); });
}

}  // namespace nibble
