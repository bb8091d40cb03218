#include "quant/awq_search.h"

#include "base/scratch_memory.h"
#include "io/journal.h"
#include "kernels/load.h"
#include "model/cpu/model.h"
#include "quant/awq.h"
#include "quant/meter.h"
#include "quant/panels.h"

#include <algorithm>
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
        WeightSpec spec{Format::nvfp4};
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
