#include "quant/rank_calibration.h"

#include "base/fields.h"

#include <algorithm>
#include <bit>

namespace nibble {
namespace {

namespace fs = std::filesystem;

// The ranges of a stage as JSON. Maxima are stored as their bits, because JSON has no infinity.
Json stage_ranges(const Calibration& seen) {
    const auto list = [](const std::map<std::string, Range, std::less<>>& ranges) {
        Json json = Json::object();
        for (const auto& [name, range] : ranges)
            if (range.rows() > 0) json[name] = {range.rows(), std::bit_cast<uint32_t>(range.amax())};
        return json;
    };
    return {{"inputs", list(seen.inputs)}, {"keys", list(seen.keys)}, {"values", list(seen.values)}};
}

// Adds the ranges of a stage. Every module runs in one stage.
Status add_ranges(const Json& json, Calibration& seen) {
    for (const auto& [part, to] : {std::pair{"inputs", &seen.inputs}, {"keys", &seen.keys}, {"values", &seen.values}}) {
        const auto list = json.find(part);
        if (list == json.end() || !list->is_object()) return fail(ErrorKind::file, "a stage's ranges have no {}", part);
        for (const auto& [name, item] : list->items()) {
            int64_t rows = 0, bits = 0;
            const auto found = to->find(name);
            if (found == to->end() || !item.is_array() || item.size() != 2 || !json_value(item[0], rows) ||
                !json_value(item[1], bits) || bits < 0 || bits > int64_t{UINT32_MAX})
                return fail(ErrorKind::file, "a stage's range of {} is damaged", name);
            if (found->second.rows() > 0) return fail("{}: runs in several blocks; calibrate with one process", name);
            found->second = Range::known(rows, std::bit_cast<float>(static_cast<uint32_t>(bits)));
        }
    }
    return Ok{};
}

}  // namespace

// The work of one stage.
struct RankCalibration::Part {
    std::unique_ptr<CalibrationKeep> keep;
    StatisticsStore store;
    Calibration seen;
    UniformMoments uniform;
    std::optional<BlockSolver> solver;
    std::optional<CalibrationObserver> observer;
};

RankCalibration::RankCalibration(Subject subject)
    : subject_(std::move(subject)),
      stream_(subject_.source, subject_.config, subject_.options.compute, subject_.pool, subject_.hooks) {}

std::string RankCalibration::facts() const {
    std::string text;
    for (const auto& [name, value] : subject_.job) text += fmt::format("{}: {}\n", name, value);
    return text;
}

Result<std::unique_ptr<RankCalibration::Part>> RankCalibration::part(const StageChain::Stage& stage, bool ranges,
                                                                     CalibrationObserver::Pass pass) const {
    const CalibrationOptions& options = subject_.options;
    std::unique_ptr<Part> part(new Part{.keep = nullptr,
                                        .store = StatisticsStore(subject_.statistics),
                                        .seen = {},
                                        .uniform = UniformMoments(options.memory, options.scratch),
                                        .solver = {},
                                        .observer = {}});
    NIBBLE_TRY(part->keep, CalibrationKeep::open(stage.results(), subject_.plan, subject_.job));
    NIBBLE_CHECK(part->store.keep_in(*part->keep));
    if (ranges) init_ranges(subject_.plan, options.range, part->seen);
    NIBBLE_TRY(auto solver, BlockSolver::create(subject_.source, subject_.plan, part->store, subject_.pool));
    part->solver.emplace(std::move(solver));
    part->observer.emplace(pass, subject_.plan, options, subject_.kernels, subject_.bytes, subject_.pool, part->store,
                           ranges ? &part->seen : nullptr, part->uniform);
    return part;
}

Status RankCalibration::finish(Part& part) const {
    NIBBLE_CHECK(part.solver->solve());
    return part.keep->note_ranges(stage_ranges(part.seen));
}

Status RankCalibration::collect(const StageChain& chain, int64_t stages, Calibration& seen) const {
    for (int64_t s = 0; s < stages; ++s) {
        NIBBLE_TRY(const fs::path folder, chain.results(s));
        NIBBLE_TRY(const auto keep, CalibrationKeep::read(folder, subject_.plan, subject_.job));
        const auto ranges = keep->ranges();
        if (!ranges) return fail(ErrorKind::file, "{}: has no ranges", folder.string());
        NIBBLE_CHECK(add_ranges(*ranges, seen).within(folder.string()));
        NIBBLE_CHECK(keep->recall([&](const std::string& module, Solution solution) {
            return seen.statistics->put(module, std::move(solution));
        }));
    }
    return Ok{};
}

Result<bool> RankCalibration::forward_stage(StageChain::Stage& stage, const Forward& pass,
                                            const std::vector<BatchPiece>& batches, ProgressMeter& meter) {
    NIBBLE_TRY(auto work, Workspace::create(subject_.options.compute, {}, subject_.pool));
    NIBBLE_TRY(auto here, part(stage, pass.ranges, pass.pass));
    if (pass.quantized) {
        NIBBLE_TRY(const MatmulKernels* products, select_matmul_kernels());
        here->observer->see_quantized(subject_.plan, *pass.quantized, *products);
    }
    const int64_t spans = std::ssize(stream_.spans()), width = subject_.config.width();
    const bool is_head = stage.index() == spans;
    std::vector<Block> blocks;
    const Head* head = nullptr;
    if (is_head) {
        NIBBLE_TRY(head, stream_.head());
    } else {
        NIBBLE_TRY(blocks, stream_.load(pass.model, stage.index(), pass.quantized != nullptr));
    }
    constexpr int64_t most = 256;
    std::vector<float> x, logits(is_head ? static_cast<size_t>(most * subject_.config.vocab) : 0);
    for (size_t i = 0; i < batches.size(); ++i) {
        const auto piece = static_cast<int64_t>(i);
        const Batch& batch = batches[i].batch;
        if (!is_head) {
            NIBBLE_TRY(const bool there, stream_.forward(stage, piece, batch, blocks, work, &*here->observer));
            if (!there) return false;
            meter.add(batch.rows() * std::ssize(blocks), fmt::format("stage {} of {}", stage.index() + 1, spans));
            continue;
        }
        NIBBLE_CHECK(stream_.go_on());
        x.resize(static_cast<size_t>(batch.rows() * width));
        NIBBLE_TRY(const bool there, stage.read(spans - 1, piece, x));
        if (!there) return false;
        for (int64_t at = 0; at < batch.rows(); at += most)
            NIBBLE_CHECK(head->forward(x.data() + at * width, std::min(most, batch.rows() - at), logits.data(), work,
                                       &*here->observer));
    }
    if (pass.solves) NIBBLE_CHECK(here->observer->end_block(*here->solver));
    if (stage.index() > 0) stage.free_later(stage.index() - 1, 0, std::ssize(batches));
    NIBBLE_CHECK(finish(*here));
    return true;
}

Status RankCalibration::forward(const Forward& pass, Calibration& seen) {
    const std::vector<BatchPiece> batches = whole_batches(subject_.sequences, subject_.options.batch_tokens);
    const int64_t stages = std::ssize(stream_.spans()) + (pass.head ? 1 : 0);
    NIBBLE_TRY(const auto chain, open_stages(*subject_.options.ranks, pass.name, facts(), stages, subject_.hooks));
    ProgressMeter meter(subject_.hooks, "calibrate", seen.tokens * std::ssize(subject_.config.blocks), token_layers);
    NIBBLE_CHECK(chain->run([&](StageChain::Stage& stage) { return forward_stage(stage, pass, batches, meter); }));
    meter.finish();
    return collect(*chain, stages, seen);
}

Status RankCalibration::backward(bool ranges, Calibration& seen, UniformMoments& left) {
    using Pass = CalibrationObserver::Pass;
    using Kind = GradientStages::Kind;
    const CalibrationOptions& options = subject_.options;
    GradientStages::Options texts{.back = {},
                                  .others = {},
                                  .compute = options.compute,
                                  .batch_tokens = options.batch_tokens,
                                  .seed = options.seed,
                                  .bytes = subject_.bytes};
    const auto step = static_cast<size_t>(gradient_step(seen.tokens, options));
    for (size_t i = 0; i < subject_.sequences.size(); ++i)
        (i % step ? texts.others : texts.back).push_back(subject_.sequences[i]);
    NIBBLE_TRY(const auto passes, GradientStages::create(subject_.source, subject_.config, std::move(texts),
                                                         subject_.pool, subject_.hooks));
    NIBBLE_TRY(const auto chain, open_stages(*options.ranks, "gradients", facts(), passes->stages(), subject_.hooks));
    std::unique_ptr<Part> here;
    const GradientStages::Callbacks callbacks{
        .begin = [&](StageChain::Stage& stage, GradientStages::Place place) -> Result<Observer*> {
            const bool uniform = place.kind == Kind::forward;
            NIBBLE_TRY(here, part(stage, ranges && uniform, uniform ? Pass::uniform : Pass::backward));
            if (place.kind == Kind::backward) {
                NIBBLE_TRY(const fs::path folder, chain->results(place.block));
                NIBBLE_CHECK(here->uniform.load(folder, [](std::string_view) { return true; }));
            }
            return &*here->observer;
        },
        .end = [&](StageChain::Stage& stage, GradientStages::Place place) -> Status {
            if (place.kind == Kind::forward) {
                NIBBLE_CHECK(here->observer->keep_uniform());
                NIBBLE_CHECK(here->uniform.save(stage.results()));
            } else {
                NIBBLE_CHECK(here->observer->end_block(*here->solver));
            }
            return finish(*here);
        }};
    NIBBLE_CHECK(passes->run(*chain, callbacks, "gradients"));
    NIBBLE_CHECK(collect(*chain, passes->stages(), seen));
    for (int64_t b = 0; b < passes->blocks(); ++b) {
        NIBBLE_TRY(const fs::path folder, chain->results(b));
        NIBBLE_CHECK(
            left.load(folder, [&](std::string_view module) { return !seen.statistics->holds(std::string(module)); }));
    }
    return Ok{};
}

}  // namespace nibble
