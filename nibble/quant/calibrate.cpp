#include "quant/calibrate.h"

#include "base/fields.h"
#include "base/scratch_memory.h"
#include "model/cpu/backward.h"
#include "model/cpu/trainable.h"
#include "quant/block_solver.h"
#include "quant/calibration_observer.h"
#include "quant/device_calibration.h"
#include "quant/meter.h"
#include "quant/quantized_inputs.h"
#include "quant/rank_calibration.h"
#include "quant/units.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <set>

namespace nibble {
namespace {

bool stores_kv(KvFormat kv) { return kv == KvFormat::fp8 || kv == KvFormat::nvfp4; }

bool watched(const PlanEntry& entry) {
    return entry.spec.format != Format::none && stores_input_scale(entry.activation) && !entry.constant_input_amax;
}

// Returns "model.layers.1.mlp.experts.*.up_proj", a name that all experts of a layer share; empty: not an expert.
std::string expert_family(std::string_view module) {
    constexpr std::string_view mark = ".experts.";
    const size_t at = module.find(mark);
    if (at == module.npos) return {};
    const size_t dot = module.find('.', at + mark.size());
    if (dot == module.npos) return {};
    return std::string(module.substr(0, at + mark.size())) + "*" + std::string(module.substr(dot));
}

// A calibration in progress.
class Run {
public:
    Run(const Checkpoint& source, const ModelConfig& config, std::span<const std::vector<int32_t>> sequences,
        const CalibrationOptions& options, ThreadPool& pool, const JobHooks& hooks, int64_t tokens,
        bool quantize_inputs = false)
        : source_(source),
          config_(config),
          sequences_(sequences),
          options_(options),
          pool_(pool),
          hooks_(hooks),
          tokens_(tokens),
          quantize_inputs_(quantize_inputs),
          batches_(whole_batches(sequences, options.batch_tokens)) {}

    // Runs the forward pass. `head`: also observe the input of the head. solver: receives the statistics; may be null.
    Status forward(CalibrationObserver& observer, BlockSolver* solver, bool head) {
        NIBBLE_TRY(work_, Workspace::create(options_.compute, {}, pool_));
        NIBBLE_TRY(stream_, stream_memory());
        NIBBLE_CHECK(embed());
        ProgressMeter meter(hooks_, "calibrate", tokens_ * blocks() * (solver ? 2 : 1), token_layers);
        for (int64_t b = 0; b < blocks(); ++b) {
            const std::string layer = fmt::format("layer {} of {}", b + 1, blocks());
            NIBBLE_TRY(const auto block, load(b));
            for (const BatchPiece& piece : batches_) {
                if (hooks_.should_stop()) return fail(ErrorKind::cancelled, "calibration stopped on request");
                NIBBLE_CHECK(block.forward(piece.batch, row(piece.row), *work_, &observer));
                meter.add(piece.batch.rows(), layer);
            }
            if (!solver) continue;
            meter.add(0, layer + ", solving its linears");
            NIBBLE_CHECK(observer.end_block(*solver));
            meter.add(tokens_, layer);
        }
        if (head) NIBBLE_CHECK(watch_head(observer));
        if (head && solver) NIBBLE_CHECK(observer.end_block(*solver));
        meter.finish();
        return Ok{};
    }

    // Runs the forward and backward passes. bytes: kernels for products in 8-bit integers, or null. went_forward:
    // called after the forward pass of all texts.
    Status backward(CalibrationObserver& forth, CalibrationObserver& back, BlockSolver& solver,
                    const ByteKernels* bytes, const std::function<Status()>& went_forward) {
        NIBBLE_TRY(auto work, Workspace::create(options_.compute, {}, pool_));
        if (bytes) work.bytes = std::make_unique<ByteProducts>(*bytes);
        WeightSource ends(source_, weights(), pool_, WeightSource::Mode::load);
        NIBBLE_TRY(const auto embedding, Embedding::load(config_, ends));
        NIBBLE_TRY(const auto head, Head::load(config_, ends));
        // Every n-th sequence goes through the backward pass.
        const auto n = static_cast<size_t>(gradient_step(tokens_, options_));
        std::vector<std::vector<int32_t>> texts;
        for (size_t i = 0; i < sequences_.size(); i += n) texts.push_back(sequences_[i]);
        const auto going_back = std::ssize(texts);
        for (size_t i = 0; i < sequences_.size(); ++i)
            if (i % n) texts.push_back(sequences_[i]);
        std::optional<ProgressMeter> meter;
        int64_t reported = 0;
        const BackwardOptions options{.sampled = PhiloxStream{options_.seed, 0},
                                      .batch_tokens = options_.batch_tokens,
                                      .memory = options_.memory,
                                      .scratch = options_.scratch,
                                      .gradient_texts = going_back,
                                      .forward_observer = &forth,
                                      .forward_done = [&](size_t block) -> Status {
                                          NIBBLE_CHECK(forth.keep_uniform());
                                          return block + 1 == config_.blocks.size() ? went_forward() : Status(Ok{});
                                      },
                                      .block_done = [&](size_t) { return back.end_block(solver); },
                                      .progress = [&](int64_t done, int64_t all) -> Status {
                                          if (hooks_.should_stop())
                                              return fail(ErrorKind::cancelled, "calibration stopped on request");
                                          if (!meter) meter.emplace(hooks_, "gradients", all, token_layers);
                                          meter->add(done - std::exchange(reported, done), source_.path().string());
                                          return Ok{};
                                      }};
        NIBBLE_CHECK(nibble::backward(config_, embedding, head, streamed_blocks(source_, config_, weights(), pool_),
                                      texts, options, work, &back, nullptr));
        if (meter) meter->finish();
        return Ok{};
    }

private:
    int64_t blocks() const { return static_cast<int64_t>(config_.blocks.size()); }
    float* row(int64_t at) const { return reinterpret_cast<float*>(stream_->data()) + at * config_.width(); }
    WeightOptions weights() const {
        return {.compute = options_.compute, .quantize_activations = quantize_inputs_, .kv = KvFormat::none};
    }
    Result<Block> load(int64_t b) const {
        return load_block(source_, config_, static_cast<size_t>(b), weights(), pool_);
    }
    Result<ScratchMemory> stream_memory() const {
        return ScratchMemory::create(static_cast<size_t>(tokens_ * config_.width()) * sizeof(float),
                                     static_cast<size_t>(options_.memory), options_.scratch);
    }

    Status embed() {
        WeightSource ends(source_, weights(), pool_, WeightSource::Mode::load);
        NIBBLE_TRY(const auto embedding, Embedding::load(config_, ends));
        int64_t at = 0;
        for (const std::vector<int32_t>& ids : sequences_) {
            NIBBLE_CHECK(embedding.forward(ids, row(at), *work_));
            at += static_cast<int64_t>(ids.size());
        }
        return Ok{};
    }

    Status watch_head(CalibrationObserver& observer) {
        WeightSource ends(source_, weights(), pool_, WeightSource::Mode::load);
        NIBBLE_TRY(const auto head, Head::load(config_, ends));
        constexpr int64_t most = 256;
        std::vector<float> logits(static_cast<size_t>(most * config_.vocab));
        for (int64_t at = 0; at < tokens_; at += most)
            NIBBLE_CHECK(head.forward(row(at), std::min(most, tokens_ - at), logits.data(), *work_, &observer));
        return Ok{};
    }

    const Checkpoint& source_;
    const ModelConfig& config_;
    std::span<const std::vector<int32_t>> sequences_;
    const CalibrationOptions& options_;
    ThreadPool& pool_;
    const JobHooks& hooks_;
    const int64_t tokens_;
    const bool quantize_inputs_;
    const std::vector<BatchPiece> batches_;
    std::optional<Workspace> work_;
    std::optional<ScratchMemory> stream_;
};

// Modules with missing data, by kind, in the order of kinds.
class GapLists {
public:
    void note(GapKind kind, const std::string& module) { modules_[kind].insert(module); }
    std::vector<CalibrationGap> gaps() const {
        std::vector<CalibrationGap> all;
        for (const auto& [kind, modules] : modules_) all.push_back(make_gap(kind, {modules.begin(), modules.end()}));
        return all;
    }

private:
    std::map<GapKind, std::set<std::string>> modules_;
};

// Experts that no token reached, or whose inputs are all zero, get the largest range of the other experts, as in Model
// Optimizer.
void fill_experts(Calibration& seen, int64_t few, GapLists& gaps) {
    std::map<std::string, std::vector<std::pair<const std::string*, Range*>>> families;
    for (auto& [module, range] : seen.inputs)
        if (std::string family = expert_family(module); !family.empty())
            families[std::move(family)].emplace_back(&module, &range);
    for (auto& [family, experts] : families) {
        const auto widest = std::ranges::max_element(
            experts, {}, [](const auto& expert) { return expert.second->rows() ? expert.second->amax() : -1.0f; });
        const Range& largest = *widest->second;
        if (largest.rows() == 0) continue;
        for (auto& [module, range] : experts) {
            const int64_t tokens = range->rows();
            if (tokens < few) gaps.note(tokens == 0 ? GapKind::unseen_experts : GapKind::few_tokens, *module);
            const bool zero = tokens > 0 && range->amax() == 0 && largest.amax() > 0;
            if (zero) gaps.note(GapKind::zero_expert_inputs, *module);
            if (tokens == 0 || zero) *range = largest;
        }
    }
}

Status check_ranges(const std::map<std::string, Range, std::less<>>& ranges, std::string_view what, GapKind zero,
                    GapLists& gaps) {
    for (const auto& [name, range] : ranges) {
        if (range.rows() == 0)
            return fail(
                "{}: calibration never ran it, so its {} are unknown; exclude it, or give its scale with "
                "--input-scales",
                name, what);
        if (!(range.amax() > 0)) gaps.note(zero, name);
    }
    return Ok{};
}

// Handles linears with a solver that no pass ran: experts without a token are solved without statistics; others are
// errors. Linears that only saw the forward pass use their uniform moments.
Status fill_statistics(const Plan& plan, const UniformMoments& uniform, const SolverKernels& kernels, ThreadPool& pool,
                       BlockSolver& solver, GapLists& gaps) {
    for (const PlanEntry& entry : plan.entries) {
        if (!entry.solver || solver.holds(entry.module)) continue;
        if (const int64_t tokens = uniform.tokens(entry.module)) {
            LinearStatistics forward{.tokens = tokens};
            Gram& inputs = forward.inputs.emplace(entry.cols(), kernels);
            inputs.finish(pool);
            uniform.add_to(inputs, entry.module, 1.0, pool);
            if (needed_statistics(entry.solver).outputs)
                // without data, rows do not compensate each other's errors
                forward.outputs.emplace(entry.rows(), kernels).finish(pool);
            solver.add(entry.module, std::move(forward));
            continue;
        }
        if (expert_family(entry.module).empty())
            return fail("{}: calibration never ran it, so {} has no statistics; exclude it", entry.module,
                        to_string(entry.solver));
        gaps.note(GapKind::unseen_experts, entry.module);
        solver.add(entry.module, {});
    }
    return solver.solve();
}

// Returns everything that determines the bits of the statistics.
std::string identity(const Calibration& seen, std::span<const std::vector<int32_t>> sequences,
                     const CalibrationOptions& options) {
    std::string text =
        fmt::format("{} tokens, {} back, batches of {}, {}, seed {}, {}{}:", seen.tokens, options.gradient_tokens,
                    options.batch_tokens, options.compute == Compute::bf16 ? "bf16" : "f32", options.seed,
                    options.all_experts ? "all experts" : "routed experts", seen.on_device ? ", on a GPU" : "");
    for (const auto& sequence : sequences) text += fmt::format(" {}", fmt::join(sequence, ","));
    return text;
}

Arithmetic plan_arithmetic(const Plan& plan) {
    const auto first = std::ranges::find_if(plan.entries, [](const PlanEntry& e) { return watched(e); });
    return first == plan.entries.end() ? Arithmetic::reciprocal : first->spec.arithmetic;
}

Json ranges_json(const Calibration& seen) {
    const auto list = [](const std::map<std::string, Range, std::less<>>& ranges) {
        Json json = Json::object();
        for (const auto& [name, range] : ranges) json[name] = {range.rows(), range.amax()};
        return json;
    };
    return {{"inputs", list(seen.inputs)}, {"keys", list(seen.keys)}, {"values", list(seen.values)}};
}

// Reads saved ranges. Returns false, without changes, if `json` lacks one of them.
bool recall_ranges(const Json& json, Calibration& seen) {
    Calibration found;
    for (const auto& [part, from, to] : {std::tuple{"inputs", &seen.inputs, &found.inputs},
                                         {"keys", &seen.keys, &found.keys},
                                         {"values", &seen.values, &found.values}})
        for (const auto& [name, range] : *from) {
            const auto list = json.find(part);
            const auto at = list == json.end() || !list->is_object() ? list : list->find(name);
            if (list == json.end() || !list->is_object() || at == list->end() || !at->is_array() || at->size() != 2)
                return false;
            int64_t rows = 0;
            float amax = 0;
            if (!json_value((*at)[0], rows) || !json_value((*at)[1], amax)) return false;
            to->emplace(name, Range::known(rows, amax));
        }
    seen.inputs = std::move(found.inputs), seen.keys = std::move(found.keys), seen.values = std::move(found.values);
    return true;
}

}  // namespace

bool needs_calibration(const Plan& plan) {
    return std::ranges::any_of(plan.entries, [](const PlanEntry& e) { return watched(e) || e.solver; }) ||
           (stores_kv(plan.kv) && !plan.kv_layers.empty());
}

bool init_ranges(const Plan& plan, const RangeRule& rule, Calibration& seen) {
    for (const PlanEntry& entry : plan.entries)
        if (watched(entry)) seen.inputs.emplace(entry.module, Range(rule));
    if (stores_kv(plan.kv))
        for (const std::string& layer : plan.kv_layers) {
            seen.keys.emplace(layer, Range(rule));
            seen.values.emplace(layer, Range(rule));
        }
    return stores_kv(plan.kv) || !seen.inputs.empty();
}

int64_t gradient_step(int64_t tokens, const CalibrationOptions& options) {
    return std::max<int64_t>(tokens / std::max<int64_t>(options.gradient_tokens, 1), 1);
}

bool calibrates_on_device(const Plan& plan) {
    return std::ranges::none_of(plan.entries, [](const PlanEntry& e) { return needed_statistics(e.solver).gradients; });
}

Result<Calibration> calibrate(const Checkpoint& source, const Plan& plan, std::string_view origin,
                              std::span<const std::vector<int32_t>> sequences, const CalibrationOptions& options,
                              ThreadPool& pool, const JobHooks& hooks) {
    const auto begin = std::chrono::steady_clock::now();
    NIBBLE_TRY(const ModelConfig config, model_config(source));
    if (!calibrates_on_device(plan)) NIBBLE_CHECK(check_backward(config).within("nibble_best needs gradients"));
    NIBBLE_TRY(const SolverKernels* kernels, select_solver_kernels());
    Calibration seen{.origin = std::string(origin), .on_device = options.device.cuda && calibrates_on_device(plan)};
    if (seen.on_device && options.compute == Compute::f32)
        return fail("calibration on a GPU rounds to BF16 between operators; FP32 runs on the CPU");
    for (const auto& sequence : sequences) seen.tokens += static_cast<int64_t>(sequence.size());
    bool ranges = init_ranges(plan, options.range, seen);
    const std::string facts = identity(seen, sequences, options);
    seen.statistics = std::make_unique<StatisticsStore>(facts);
    JobIdentity job = options.job;
    job.emplace_back("calibration's revision", fmt::format("{}", calibration_revision));
    job.emplace_back("calibration", hash_text(fmt::format("{} {} {}", facts, static_cast<int>(options.range.kind),
                                                          options.range.percentile)));
    job.emplace_back("recipe and plan", hash_text(plan_identity(plan)));
    std::unique_ptr<CalibrationKeep> keep;
    if (!options.keep.empty() && !options.ranks) {
        NIBBLE_TRY(keep, CalibrationKeep::open(options.keep, plan, job));
        NIBBLE_CHECK(seen.statistics->keep_in(*keep));
        if (const auto kept = keep->ranges(); kept && recall_ranges(*kept, seen)) ranges = false;
    }
    // Determines which passes are still necessary.
    bool head = false, solves = false, forth = false, back = false, quantized = false;
    for (const PlanEntry& entry : plan.entries) {
        const bool solve = entry.solver && !seen.statistics->holds(entry.module);
        const bool gradients = solve && needed_statistics(entry.solver).gradients;
        head |= entry.tensor == config.head && ((ranges && watched(entry)) || solve);
        solves |= static_cast<bool>(entry.solver);
        // GPTQ with quantized inputs needs a second forward pass, once the input scales are known.
        const bool after =
            solve && entry.solver.kind == WeightSolver::Kind::gptq && entry.activation == ActivationFormat::nvfp4;
        quantized |= after;
        forth |= solve && !gradients && !after;
        back |= gradients;
    }
    forth |= ranges && (head || !back);  // otherwise the forward part of the gradient pass collects them
    NIBBLE_TRY(const ByteKernels* const bytes, select_byte_kernels());
    NIBBLE_TRY(auto solver, BlockSolver::create(source, plan, *seen.statistics, pool));
    UniformMoments uniform(options.memory, options.scratch);
    const auto observer = [&](CalibrationObserver::Pass pass, bool watches) {
        return CalibrationObserver(pass, plan, options, *kernels, bytes, pool, *seen.statistics,
                                   watches && ranges ? &seen : nullptr, uniform);
    };
    const auto note_ranges = [&]() -> Status {
        return keep && std::exchange(ranges, false) ? keep->note_ranges(ranges_json(seen)) : Status(Ok{});
    };
    Run run(source, config, sequences, options, pool, hooks, seen.tokens);
    std::optional<RankCalibration> shared;
    if (options.ranks) {
        if (seen.on_device)
            return fail(ErrorKind::usage,
                        "calibration over several ranks runs on the CPU: omit --device, or start one process");
        shared.emplace(RankCalibration::Subject{source, config, plan, sequences, options, *kernels, bytes, pool, hooks,
                                                facts, job});
    }
    std::unique_ptr<DeviceCalibration> on_device;
    if (seen.on_device && (forth || quantized)) {
        NIBBLE_TRY(on_device, open_device_calibration(source, plan, sequences, options, pool));
    }
    if (forth && on_device) {
        NIBBLE_CHECK(on_device
                         ->run({.model = source,
                                .ranges = ranges ? &seen : nullptr,
                                .solver = solves && !quantized ? &solver : nullptr,
                                .done = *seen.statistics,
                                .head = head},
                               hooks)
                         .within(origin));
        if (std::string note = on_device->note(); !note.empty()) seen.warnings.push_back(std::move(note));
        NIBBLE_CHECK(note_ranges());
    } else if (forth && shared) {
        NIBBLE_CHECK(
            shared
                ->forward({.name = "forward",
                           .model = source,
                           .pass = quantized ? CalibrationObserver::Pass::uniform : CalibrationObserver::Pass::forward,
                           .ranges = ranges,
                           .solves = solves && !quantized,
                           .head = head},
                          seen)
                .within(origin));
    } else if (forth) {
        // Pass::uniform collects ranges, and nothing for solvers without gradients.
        auto eye = observer(quantized ? CalibrationObserver::Pass::uniform : CalibrationObserver::Pass::forward, true);
        NIBBLE_CHECK(run.forward(eye, solves && !quantized ? &solver : nullptr, head).within(origin));
        NIBBLE_CHECK(note_ranges());
    }
    GapLists gaps;
    const auto finish_ranges = [&]() -> Status {
        fill_experts(seen, options.expert_tokens, gaps);
        NIBBLE_CHECK(check_ranges(seen.inputs, "inputs", GapKind::zero_inputs, gaps));
        NIBBLE_CHECK(check_ranges(seen.keys, "keys", GapKind::zero_cache, gaps));
        return check_ranges(seen.values, "values", GapKind::zero_cache, gaps);
    };
    if (quantized) {
        NIBBLE_CHECK(finish_ranges());
        const ScaleTable table = scale_table(seen, plan, plan_arithmetic(plan));
        NIBBLE_TRY(const ActivationScales scales, resolve_activation_scales(plan, &table));
        const auto changed = with_quantized_inputs(source, plan, scales);
        if (on_device) {
            NIBBLE_CHECK(on_device
                             ->run({.model = *changed,
                                    .quantized = &scales,
                                    .solver = &solver,
                                    .done = *seen.statistics,
                                    .head = head},
                                   hooks)
                             .within(origin));
        } else if (shared) {
            NIBBLE_CHECK(shared
                             ->forward({.name = "quantized-inputs",
                                        .model = *changed,
                                        .quantized = &scales,
                                        .solves = true,
                                        .head = head},
                                       seen)
                             .within(origin));
        } else {
            NIBBLE_TRY(const MatmulKernels* products, select_matmul_kernels());
            auto eye = observer(CalibrationObserver::Pass::forward, false);
            eye.see_quantized(plan, scales, *products);
            Run again(*changed, config, sequences, options, pool, hooks, seen.tokens, true);
            NIBBLE_CHECK(again.forward(eye, &solver, head).within(origin));
        }
    }
    if (back && shared) {
        NIBBLE_CHECK(shared->backward(ranges && !forth, seen, uniform).within(origin));
    } else if (back) {
        auto there = observer(CalibrationObserver::Pass::uniform, !forth);
        auto and_back = observer(CalibrationObserver::Pass::backward, false);
        NIBBLE_CHECK(run.backward(there, and_back, solver, bytes, note_ranges).within(origin));
    }
    if (solves) {
        NIBBLE_CHECK(fill_statistics(plan, uniform, *kernels, pool, solver, gaps));
        seen.output_errors = seen.statistics->output_errors();
        seen.statistics->keep_no_more();
    } else {
        seen.statistics = nullptr;
    }
    if (!quantized) NIBBLE_CHECK(finish_ranges());
    seen.gaps = gaps.gaps();
    seen.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    return seen;
}

ScaleTable scale_table(const Calibration& seen, const Plan& plan, Arithmetic arithmetic) {
    ScaleTable table{seen.origin, {}};
    for (const PlanEntry& entry : plan.entries)
        if (const auto found = seen.inputs.find(entry.module); found != seen.inputs.end())
            table.values[entry.module + ".input_scale"] =
                scale_of_amax(entry.activation, found->second.amax(), arithmetic);
    for (const auto& [module, range] : seen.keys)
        table.values[module + ".k_proj.k_scale"] = scale_of_amax(ActivationFormat::fp8, range.amax(), arithmetic);
    for (const auto& [module, range] : seen.values)
        table.values[module + ".v_proj.v_scale"] = scale_of_amax(ActivationFormat::fp8, range.amax(), arithmetic);
    return table;
}

}  // namespace nibble
