#include "quant/awq_search.h"

#include "base/fields.h"
#include "base/scratch_memory.h"
#include "io/atomic_file.h"
#include "io/journal.h"
#include "kernels/load.h"
#include "model/cpu/model.h"
#include "quant/awq.h"
#include "quant/meter.h"
#include "quant/panels.h"
#include "quant/plan_json.h"
#include "quant/stage_stream.h"
#include "quant/units.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <cmath>

namespace nibble {
namespace {

// Mean magnitudes and every n-th row of the inputs of one group. n is doubled when there are too many rows, so the
// sample does not depend on batches.
class InputSample {
public:
    static constexpr int64_t most = 512;

    void add(const float* x, int64_t rows, int64_t cols) {
        sum_.resize(static_cast<size_t>(cols));
        for (int64_t i = 0; i < rows; ++i, x += cols, ++seen_) {
            for (int64_t k = 0; k < cols; ++k) sum_[static_cast<size_t>(k)] += double{magnitude(x[k])};
            if (seen_ % stride_ != 0) continue;
            if (count() == most) thin();
            if (seen_ % stride_ == 0) rows_.insert(rows_.end(), x, x + cols);
        }
    }
    int64_t count() const { return sum_.empty() ? 0 : std::ssize(rows_) / std::ssize(sum_); }
    const std::vector<float>& rows() const { return rows_; }
    std::vector<float> mean_magnitude() const {
        std::vector<float> mean(sum_.size());
        std::ranges::transform(sum_, mean.begin(),
                               [&](double s) { return static_cast<float>(s / static_cast<double>(seen_)); });
        return mean;
    }

private:
    void thin() {
        const auto cols = std::ssize(sum_);
        for (int64_t i = 0; 2 * i < most; ++i)
            std::copy_n(rows_.begin() + 2 * i * cols, cols, rows_.begin() + i * cols);
        rows_.resize(static_cast<size_t>(most / 2 * cols));
        stride_ *= 2;
    }

    std::vector<double> sum_;
    std::vector<float> rows_;
    int64_t seen_ = 0, stride_ = 1;
};

class InputObserver : public Observer {
public:
    std::map<std::string, std::vector<InputSample*>, std::less<>> wanted;  // by module

    Status input(const Linear& linear, const float* x, int64_t rows, int64_t cols, std::span<const int32_t>) override {
        if (const auto found = wanted.find(linear.name); found != wanted.end())
            for (InputSample* sample : found->second) sample->add(x, rows, cols);
        return Ok{};
    }
    Status kv(const std::string&, const float*, const float*, int64_t, int64_t, int64_t) override { return Ok{}; }
    Status output_gradient(const Linear&, const float*, int64_t, int64_t, std::span<const int32_t>) override {
        return Ok{};
    }
};

Json bits_json(const std::vector<float>& values) {
    Json json = Json::array();
    for (const float value : values) json.push_back(std::bit_cast<uint32_t>(value));
    return json;
}

bool read_bits(const Json& json, std::vector<float>& values) {
    std::vector<int64_t> bits;
    if (!json_value(json, bits)) return false;
    values.clear();
    for (const int64_t b : bits) {
        if (b < 0 || b > int64_t{UINT32_MAX}) return false;
        values.push_back(std::bit_cast<float>(static_cast<uint32_t>(b)));
    }
    return true;
}

// The choices of one stage of a search by ranks. Numbers are stored as their bits.
Json stage_json(const AwqResult& found, const std::vector<std::string>& unscaled) {
    Json choices = Json::array(), folds = Json::array();
    for (const AwqChoice& c : found.choices)
        choices.push_back({{"first", c.first},
                           {"alpha", std::bit_cast<uint32_t>(c.alpha)},
                           {"before", std::bit_cast<int64_t>(c.before)},
                           {"after", std::bit_cast<int64_t>(c.after)},
                           {"taken", c.taken}});
    for (const auto& [index, fold] : found.folds)
        folds.push_back({{"tensor", int64_t(index)},
                         {"rows", bits_json(fold.rows)},
                         {"columns", bits_json(fold.columns)},
                         {"plus_one", fold.plus_one}});
    return {{"choices", choices}, {"folds", folds}, {"unscaled", unscaled}};
}

// Adds what stage_json() wrote. A tensor may get its rows and its columns in different stages.
bool add_stage(const Json& json, AwqResult& found, std::vector<std::string>& unscaled) {
    std::vector<std::string> names;
    if (!json.is_object() || !json.contains("unscaled") || !json_value(json["unscaled"], names) ||
        !json.contains("choices") || !json.contains("folds"))
        return false;
    unscaled.insert(unscaled.end(), names.begin(), names.end());
    for (const Json& item : json["choices"]) {
        AwqChoice& choice = found.choices.emplace_back();
        int64_t alpha = 0, before = 0, after = 0;
        Fields fields(item);
        if (!fields.need("first", choice.first).ok() || !fields.need("alpha", alpha).ok() ||
            !fields.need("before", before).ok() || !fields.need("after", after).ok() ||
            !fields.need("taken", choice.taken).ok())
            return false;
        choice.alpha = std::bit_cast<float>(static_cast<uint32_t>(alpha));
        choice.before = std::bit_cast<double>(before);
        choice.after = std::bit_cast<double>(after);
    }
    for (const Json& item : json["folds"]) {
        int64_t tensor = -1;
        Fold fold;
        Fields fields(item);
        if (!fields.need("tensor", tensor).ok() || tensor < 0 || !fields.need("plus_one", fold.plus_one).ok() ||
            !item.contains("rows") || !read_bits(item["rows"], fold.rows) || !item.contains("columns") ||
            !read_bits(item["columns"], fold.columns))
            return false;
        Fold& to = found.folds[static_cast<size_t>(tensor)];
        if (!fold.rows.empty()) to.rows = std::move(fold.rows);
        if (!fold.columns.empty()) to.columns = std::move(fold.columns);
        to.plus_one = to.plus_one || fold.plus_one;
    }
    return true;
}

class AwqRun {
public:
    AwqRun(const Checkpoint& source, const Plan& plan, const ModelConfig& config,
           std::span<const std::vector<int32_t>> sequences, const CalibrationOptions& options, ThreadPool& pool)
        : source_(source), plan_(plan), config_(config), sequences_(sequences), options_(options), pool_(pool) {}

    Result<AwqResult> run(const JobHooks& hooks) {
        NIBBLE_TRY(AwqPlan groups, awq_groups(plan_, config_, source_.tensors()));
        out_.warnings = std::move(groups.unscaled);
        NIBBLE_TRY(quantize_, select_quantize_kernels());
        NIBBLE_TRY(solver_, select_solver_kernels());
        if (options_.ranks) return run_by_ranks(groups, hooks);
        int64_t tokens = 0;
        for (const auto& sequence : sequences_) tokens += std::ssize(sequence);
        NIBBLE_TRY(auto work, Workspace::create(options_.compute, {}, pool_));
        NIBBLE_TRY(const auto stream,
                   ScratchMemory::create(static_cast<size_t>(tokens * config_.width()) * sizeof(float),
                                         static_cast<size_t>(options_.memory), options_.scratch));
        auto* x = reinterpret_cast<float*>(stream.data());
        const WeightOptions weights{.compute = options_.compute, .quantize_activations = false, .kv = KvFormat::none};
        WeightSource ends(source_, weights, pool_, WeightSource::Mode::load);
        NIBBLE_TRY(const auto embedding, Embedding::load(config_, ends));
        int64_t at = 0;
        for (const auto& ids : sequences_) {
            NIBBLE_CHECK(embedding.forward(ids, x + at * config_.width(), work));
            at += std::ssize(ids);
        }
        const std::vector<BatchPiece> batches = whole_batches(sequences_, options_.batch_tokens);
        ProgressMeter meter(hooks, "awq", 2 * tokens * std::ssize(config_.blocks), token_layers);
        for (size_t b = 0, g = 0; b < config_.blocks.size(); ++b) {
            const std::string layer = fmt::format("layer {} of {}", b + 1, config_.blocks.size());
            const size_t first = g;
            while (g < groups.groups.size() && groups.groups[g].block == b) ++g;
            const std::span<const AwqGroup> here(groups.groups.data() + first, g - first);
            std::vector<InputSample> samples(here.size());
            InputObserver observer;
            for (size_t i = 0; i < here.size(); ++i)
                for (const std::string& module : here[i].watched) observer.wanted[module].push_back(&samples[i]);
            NIBBLE_TRY(const auto block, load_block(source_, config_, b, weights, pool_));
            for (const BatchPiece& piece : batches) {
                if (hooks.should_stop()) return fail(ErrorKind::cancelled, "calibration stopped on request");
                NIBBLE_CHECK(block.forward(piece.batch, x + piece.row * config_.width(), work, &observer));
                meter.add(piece.batch.rows(), layer);
            }
            for (size_t i = 0; i < here.size(); ++i)
                NIBBLE_CHECK(solve(here[i], samples[i]).within(plan_.entries[here[i].readers[0]].module));
            meter.add(tokens, layer);
        }
        meter.finish();
        if (!unscaled_.empty()) out_.gaps.push_back(make_gap(GapKind::unscaled, std::move(unscaled_)));
        return std::move(out_);
    }

private:
    // Every stage searches the scales of a span of blocks; all ranks read the results of all stages.
    Result<AwqResult> run_by_ranks(const AwqPlan& groups, const JobHooks& hooks) {
        StageStream stream(source_, config_, options_.compute, pool_, hooks);
        const auto stages = std::ssize(stream.spans());
        std::string facts = plan_identity(plan_);
        for (const auto& [name, value] : options_.job) facts += fmt::format("\n{}: {}", name, value);
        for (const auto& sequence : sequences_) facts += fmt::format("\n{}", fmt::join(sequence, ","));
        NIBBLE_TRY(const auto chain, open_stages(*options_.ranks, "awq", facts, stages, hooks));
        const std::vector<BatchPiece> batches = whole_batches(sequences_, options_.batch_tokens);
        const std::filesystem::path name = "scales.json";
        AwqResult whole = std::exchange(out_, {});
        NIBBLE_CHECK(chain->run([&](StageChain::Stage& stage) -> Result<bool> {
            out_ = {};
            unscaled_.clear();
            const auto [first, last] = stream.spans()[static_cast<size_t>(stage.index())];
            std::vector<const AwqGroup*> here;
            for (const AwqGroup& group : groups.groups)
                if (const auto b = static_cast<int64_t>(group.block); b >= first && b < last) here.push_back(&group);
            std::vector<InputSample> samples(here.size());
            InputObserver observer;
            for (size_t i = 0; i < here.size(); ++i)
                for (const std::string& module : here[i]->watched) observer.wanted[module].push_back(&samples[i]);
            NIBBLE_TRY(auto work, Workspace::create(options_.compute, {}, pool_));
            NIBBLE_TRY(const auto blocks, stream.load(source_, stage.index(), false));
            for (size_t i = 0; i < batches.size(); ++i) {
                NIBBLE_TRY(const bool there,
                           stream.forward(stage, static_cast<int64_t>(i), batches[i].batch, blocks, work, &observer));
                if (!there) return false;
            }
            for (size_t i = 0; i < here.size(); ++i)
                NIBBLE_CHECK(solve(*here[i], samples[i]).within(plan_.entries[here[i]->readers[0]].module));
            if (stage.index() > 0) stage.free_later(stage.index() - 1, 0, std::ssize(batches));
            NIBBLE_CHECK(write_file_atomically(stage.results() / name, stage_json(out_, unscaled_).dump() + "\n"));
            return true;
        }));
        std::vector<std::string> unscaled;
        for (int64_t s = 0; s < stages; ++s) {
            NIBBLE_TRY(const auto folder, chain->results(s));
            NIBBLE_TRY(const Json json, read_json_file(folder / name));
            if (!add_stage(json, whole, unscaled))
                return fail(ErrorKind::file, "{}: is damaged", (folder / name).string());
        }
        if (!unscaled.empty()) whole.gaps.push_back(make_gap(GapKind::unscaled, std::move(unscaled)));
        return whole;
    }

    Status solve(const AwqGroup& g, const InputSample& sample) {
        const PlanEntry& first = plan_.entries[g.members[0]];
        const std::vector<float> mean = sample.mean_magnitude();
        if (std::ranges::none_of(mean, [](float x) { return x > 0; })) {
            unscaled_.push_back(plan_.entries[g.readers[0]].module);
            return Ok{};
        }
        PanelScratch scratch;
        const AwqWeights weights{g.members.size(), [&](size_t m) {
                                     const size_t i = g.members[m];
                                     return read_weights(source_, i, 0, plan_.entries[i].rows(), *quantize_, scratch);
                                 }};
        WeightSpec spec{first.spec.format};
        spec.arithmetic = first.spec.arithmetic;
        spec.weights = first.spec.weights;
        NIBBLE_TRY(AwqScales found, awq_lite(weights,
                                             {.mean_magnitude = mean,
                                              .rows = sample.rows().data(),
                                              .count = sample.count(),
                                              .quantized = first.activation == ActivationFormat::nvfp4,
                                              .classes = g.classes,
                                              .powers_of_two = g.powers_of_two},
                                             spec, plan_.awq->alpha_step, *quantize_, *solver_, pool_));
        const double after = *std::ranges::min_element(found.loss);
        const AwqChoice choice{plan_.entries[g.readers[0]].module, found.alpha, found.unscaled, after,
                               after < found.unscaled};
        out_.choices.push_back(choice);
        if (!choice.taken) return Ok{};
        return fold_group(source_, g, config_.norm_plus_one, std::move(found.scale), out_.folds);
    }

    const Checkpoint& source_;
    const Plan& plan_;
    const ModelConfig& config_;
    std::span<const std::vector<int32_t>> sequences_;
    const CalibrationOptions& options_;
    ThreadPool& pool_;
    const QuantizeKernels* quantize_ = nullptr;
    const SolverKernels* solver_ = nullptr;
    std::vector<std::string> unscaled_;
    AwqResult out_;
};

// A norm's weight has few bits: after rounding w / s, `scale` becomes w / rounded, so that the product is exact.
Status fit_norm(const Checkpoint& source, size_t norm, bool plus_one, std::vector<float>& scale,
                const std::vector<float>& inverse) {
    const int64_t n = source.tensors()[norm].rows();
    if (n != std::ssize(scale)) return fail("the norm before it has {} weights for {} inputs", n, scale.size());
    NIBBLE_TRY(const QuantizeKernels* kernels, select_quantize_kernels());
    NIBBLE_TRY(const auto folded, fold_checkpoint(source, {{norm, {inverse, {}, plus_one}}}));
    PanelScratch before, after;
    NIBBLE_TRY(const MatrixView w, read_weights(source, norm, 0, n, *kernels, before));
    NIBBLE_TRY(const MatrixView v, read_weights(*folded, norm, 0, n, *kernels, after));
    const float one = plus_one ? 1.0f : 0.0f;
    for (int64_t k = 0; k < n; ++k) {
        const float from = ref::load(w, k, 0) + one, to = ref::load(v, k, 0) + one;
        if (from != 0 && to != 0) scale[static_cast<size_t>(k)] = from / to;
    }
    return Ok{};
}

}  // namespace

Status fold_group(const Checkpoint& source, const AwqGroup& g, bool plus_one, std::vector<float> scale, Folds& folds) {
    std::vector<float> inverse(static_cast<size_t>(source.tensors()[g.producer].rows()), 1.0f);
    for (size_t k = 0; k < scale.size(); ++k)
        inverse[g.classes.empty() ? k : static_cast<size_t>(g.classes[k])] = 1.0f / scale[k];
    if (g.norm) NIBBLE_CHECK(fit_norm(source, g.producer, plus_one, scale, inverse));
    if (g.bias) folds[*g.bias].rows = inverse;
    folds[g.producer].plus_one = g.norm && plus_one;
    folds[g.producer].rows = std::move(inverse);
    for (const size_t reader : g.readers) folds[reader].columns = scale;
    return Ok{};
}

Json AwqResult::summary() const {
    double left = 0;
    int64_t taken = 0;
    for (const AwqChoice& c : choices) {
        taken += c.taken;
        left += c.taken ? c.after / c.before : 1.0;
    }
    std::string scales;
    for (const auto& [index, fold] : folds) {
        scales += fmt::format("{}:", index);
        for (const auto* side : {&fold.rows, &fold.columns})
            for (const float s : *side) scales += fmt::format("{},", float_bits(s));
    }
    return {{"groups", choices.size()},
            {"scaled", taken},
            {"error left", choices.empty() ? 1.0 : left / static_cast<double>(choices.size())},
            {"scales", hash_text(scales)}};
}

Result<AwqResult> awq_search(const Checkpoint& source, const Plan& plan,
                             std::span<const std::vector<int32_t>> sequences, const CalibrationOptions& options,
                             ThreadPool& pool, const JobHooks& hooks) {
    NIBBLE_TRY(const ModelConfig config, model_config(source));
    return AwqRun(source, plan, config, sequences, options, pool).run(hooks);
}

}  // namespace nibble
