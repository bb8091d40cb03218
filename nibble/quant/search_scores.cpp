#include "quant/search_scores.h"

#include "base/fields.h"
#include "model/cpu/backward.h"
#include "quant/meter.h"

#include <algorithm>
#include <cmath>

namespace nibble {
namespace {

// Packs the weights of the observed linears, unquantized and in every candidate format, and sums up their scores.
class ScoreObserver : public Observer {
public:
    static Result<std::unique_ptr<ScoreObserver>> create(const Trials& trials, ScoreMethod method, Workspace& work,
                                                         Journal* journal) {
        auto observer = std::make_unique<ScoreObserver>(trials, method, work);
        const SearchSpace& space = trials.space();
        for (size_t f = 0; f < space.none(); ++f) {
            NIBBLE_TRY(auto trial, trials.uniform(f));
            observer->formats_.push_back(std::move(trial));
        }
        const auto tensors = trials.source().tensors();
        observer->recalled_.resize(space.groups.size());
        for (size_t g = 0; g < space.groups.size(); ++g) {
            const SearchGroup& group = space.groups[g];
            if (group.candidates.size() < 2) continue;
            const auto kept = journal ? journal->finished(static_cast<int64_t>(g)) : std::nullopt;
            if (kept && recall(*kept, group.candidates.size(), observer->recalled_[g])) continue;
            for (const size_t i : group.tensors) {
                const std::string& name = tensors[i].name;
                observer->linears_[name.substr(0, name.size() - std::string_view(".weight").size())] = {
                    .tensor = i, .group = g, .sums = std::vector<double>(group.candidates.size(), 0.0)};
            }
        }
        return observer;
    }
    ScoreObserver(const Trials& trials, ScoreMethod method, Workspace& work)
        : trials_(trials), method_(method), work_(work) {}

    Status input(const Linear& linear, const float* x, int64_t rows, int64_t cols, std::span<const int32_t>) override {
        if (linears_.contains(linear.name)) x_.assign(x, x + rows * cols);
        return Ok{};
    }
    Status kv(const std::string&, const float*, const float*, int64_t, int64_t, int64_t) override { return Ok{}; }

    Status output_gradient(const Linear& linear, const float* g, int64_t rows, int64_t cols,
                           std::span<const int32_t>) override {
        const auto found = linears_.find(linear.name);
        if (found == linears_.end() || rows == 0) return Ok{};
        Scored& scored = found->second;
        NIBBLE_CHECK(open(scored).within(linear.name));
        scored.rows += rows;
        const auto size = static_cast<size_t>(rows * cols);
        plain_.resize(size);
        changed_.resize(size);
        const MatmulInput input{x_.data(), rows, linear.cols};
        work_.matmul->matmul(scored.plain, input, {plain_.data(), cols}, trials_.pool());
        for (size_t i = 0; i < scored.changed.size(); ++i) {
            const Changed& c = scored.changed[i];
            if (c.weight.rows() == 0) continue;
            work_.matmul->matmul(c.weight, {x_.data(), rows, linear.cols, c.activation, c.input_scale},
                                 {changed_.data(), cols}, trials_.pool());
            NIBBLE_TRY(const double sum, compare(g, rows, cols).within(linear.name));
            scored.sums[i] += sum;
        }
        return Ok{};
    }

    bool done() const { return linears_.empty(); }

    // Called at the end of a block: records its groups (whose linears are all in the block) in the journal and frees
    // its weights.
    Status close(Journal* journal) {
        std::map<size_t, GroupSums> finished;
        for (auto& [name, scored] : linears_) {
            if (!scored.open) continue;
            scored.open = false, scored.plain = {}, scored.changed.clear();
            finished.emplace(scored.group, GroupSums{0, std::vector<double>(scored.sums.size())});
        }
        if (!journal) return Ok{};
        add_to(finished);
        for (const auto& [g, sums] : finished)
            NIBBLE_CHECK(journal->append(static_cast<int64_t>(g), Json{{"rows", sums.rows}, {"sums", sums.values}}));
        return Ok{};
    }

    Result<std::vector<std::vector<double>>> sums() const {
        const SearchSpace& space = trials_.space();
        std::map<size_t, GroupSums> found;
        for (size_t g = 0; g < space.groups.size(); ++g)
            found[g] = recalled_[g].values.empty()
                           ? GroupSums{0, std::vector<double>(space.groups[g].candidates.size())}
                           : recalled_[g];
        add_to(found);
        std::vector<std::vector<double>> values;
        for (auto& [g, sums] : found) {
            if (sums.rows == 0 && space.groups[g].candidates.size() > 1)
                return fail("{}: no token of the calibration text ran through it; --keep it in one format",
                            space.groups[g].name);
            values.push_back(std::move(sums.values));
        }
        return values;
    }

private:
    struct GroupSums {
        int64_t rows = 0;
        std::vector<double> values;
    };
    static bool recall(const Json& kept, size_t candidates, GroupSums& sums) {
        const auto values = kept.find("sums");
        if (values == kept.end() || !json_value(*values, sums.values) || sums.values.size() != candidates ||
            !Fields(kept).need("rows", sums.rows).ok())
            return sums = {}, false;
        return true;
    }
    // Adds the scores to the groups in `sums`, in the order of the linears' names, so that the bits do not depend on
    // resuming.
    void add_to(std::map<size_t, GroupSums>& sums) const {
        for (const auto& [name, scored] : linears_) {
            const auto found = sums.find(scored.group);
            if (found == sums.end()) continue;
            found->second.rows += scored.rows;
            for (size_t i = 0; i < scored.sums.size(); ++i) found->second.values[i] += scored.sums[i];
        }
    }

    struct Changed {
        PackedMatrix weight;  // empty: the candidate is "none"
        ActivationFormat activation = ActivationFormat::none;
        float input_scale = 1.0f;
    };
    struct Scored {
        size_t tensor = 0, group = 0;
        bool open = false;
        PackedMatrix plain;
        std::vector<Changed> changed;  // one per candidate of the group
        int64_t rows = 0;
        std::vector<double> sums;  // one per candidate
    };

    Status open(Scored& scored) {
        if (scored.open) return Ok{};
        NIBBLE_TRY(scored.plain, pack(trials_.source(), scored.tensor));
        for (const size_t f : trials_.space().groups[scored.group].candidates) {
            Changed& c = scored.changed.emplace_back();
            if (f == trials_.space().none()) continue;
            const CheckpointTensor& tensor = formats_[f]->tensors()[scored.tensor];
            NIBBLE_TRY(c.weight, pack(*formats_[f], scored.tensor));
            c.activation = tensor.activation;
            c.input_scale = tensor.input_scale.value_or(1.0f);
        }
        scored.open = true;
        return Ok{};
    }

    Result<PackedMatrix> pack(const Checkpoint& from, size_t index) const {
        const CheckpointTensor& tensor = from.tensors()[index];
        Result<PackedMatrix> packed = fail("not packed");
        if (tensor.quantized()) {
            QuantMatrix scratch;
            NIBBLE_TRY(const QuantView view, from.read_quant(index, 0, tensor.rows(), scratch));
            packed = prepack(view, trials_.pool());
        } else {
            Matrix scratch;
            NIBBLE_TRY(const MatrixView view, from.read_plain(index, 0, tensor.rows(), scratch));
            packed = prepack(view, trials_.pool());
        }
        from.done_with(index, 0, tensor.rows());
        return packed;
    }

    // Sums rows in order, whatever the number of threads.
    Result<double> compare(const float* g, int64_t rows, int64_t cols) {
        per_row_.resize(static_cast<size_t>(rows));
        trials_.pool().parallel_for(rows, [&](int64_t t) {
            double dot = 0, squares = 0;
            for (int64_t j = t * cols; j < (t + 1) * cols; ++j) {
                const auto at = static_cast<size_t>(j);
                const double product = double(g[j]) * (double(changed_[at]) - plain_[at]);
                const double clamped = std::clamp(product, -1e10, 1e10);
                dot += product;
                squares += clamped * clamped;
            }
            per_row_[static_cast<size_t>(t)] = method_ == ScoreMethod::fisher ? dot * dot : squares;
        });
        double sum = 0;
        for (const double row : per_row_) sum += row;
        if (!std::isfinite(sum)) return fail("its score is {}", sum);
        return sum;
    }

    const Trials& trials_;
    const ScoreMethod method_;
    Workspace& work_;
    std::vector<std::unique_ptr<TrialCheckpoint>> formats_;
    std::map<std::string, Scored, std::less<>> linears_;  // by module; without groups read from the journal
    std::vector<GroupSums> recalled_;                     // by group; from an earlier run
    std::vector<float> x_, plain_, changed_;
    std::vector<double> per_row_;
};

Result<std::vector<std::vector<double>>> gradient_sums(const Trials& trials, TokenSequences sequences,
                                                       const ScoreOptions& options, const JobHooks& hooks) {
    const Checkpoint& source = trials.source();
    NIBBLE_TRY(const ModelConfig config, model_config(source));
    NIBBLE_TRY(auto work, Workspace::create(options.compute, {}, trials.pool()));
    NIBBLE_TRY(auto products, Workspace::create(options.compute, {}, trials.pool()));
    NIBBLE_TRY(const auto observer, ScoreObserver::create(trials, options.method, products, options.journal));
    if (observer->done()) return observer->sums();
    const WeightOptions weights{.compute = options.compute, .quantize_activations = false, .kv = KvFormat::none};
    WeightSource ends(source, weights, trials.pool(), WeightSource::Mode::load);
    NIBBLE_TRY(const auto embedding, Embedding::load(config, ends));
    NIBBLE_TRY(const auto head, Head::load(config, ends));
    std::optional<ProgressMeter> meter;
    int64_t reported = 0;
    const BackwardOptions backward_options{.sampled = PhiloxStream{options.seed, 0},
                                           .batch_tokens = options.batch_tokens,
                                           .memory = options.memory,
                                           .scratch = options.scratch,
                                           .block_done = [&](size_t) { return observer->close(options.journal); },
                                           .progress = [&](int64_t done, int64_t all) -> Status {
                                               if (hooks.should_stop())
                                                   return fail(ErrorKind::cancelled, "search stopped on request");
                                               if (!meter) meter.emplace(hooks, "scores", all, "tokens");
                                               meter->add(done - std::exchange(reported, done), source.path().string());
                                               return Ok{};
                                           }};
    NIBBLE_CHECK(nibble::backward(config, embedding, head, streamed_blocks(source, config, weights, trials.pool()),
                                  sequences, backward_options, work, observer.get(), nullptr));
    if (meter) meter->finish();
    return observer->sums();
}

}  // namespace

Result<SearchScores> search_scores(const Trials& trials, std::string_view origin, TokenSequences sequences,
                                   const ScoreOptions& options, const JobHooks& hooks) {
    SearchScores scores{.method = options.method, .origin = std::string(origin)};
    for (const auto& sequence : sequences) scores.tokens += static_cast<int64_t>(sequence.size());
    if (options.method == ScoreMethod::kl) {
        NIBBLE_TRY(auto meter, KlMeter::create(trials.source(), sequences, options, trials.pool()));
        NIBBLE_TRY(scores.values, meter.measure_groups(trials, options.journal, hooks));
    } else {
        NIBBLE_TRY(scores.values, gradient_sums(trials, sequences, options, hooks));
        if (options.method == ScoreMethod::fisher)
            for (auto& group : scores.values)
                for (double& value : group) value /= 2 * double(scores.tokens);
    }
    scores.make_monotone();
    return scores;
}

}  // namespace nibble
