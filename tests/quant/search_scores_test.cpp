// Scores of a mixed-precision search on a small checkpoint, compared with direct computations in double.
#include "quant/search_scores.h"

#include "model/cpu/backward.h"
#include "quant/fakes.h"
#include "support/files.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>

namespace nibble::test {
namespace {

std::vector<std::vector<int32_t>> random_texts() {
    std::mt19937 random(3);
    std::vector<std::vector<int32_t>> texts(3);
    for (auto& text : texts)
        for (int i = 0; i < 40; ++i) text.push_back(static_cast<int32_t>(random() % 32));
    return texts;
}

struct Bed {
    std::unique_ptr<Checkpoint> source = std::move(*Checkpoint::open(test_data("chat")));
    std::vector<std::vector<int32_t>> texts = random_texts();
    ThreadPool pool{2};
    SearchSpace space;
    std::optional<Trials> trials;

    explicit Bed(std::vector<std::string> formats, const ScoreOptions& options = {}) {
        auto found = search_space(source->tensors(), source->config(), {.formats = std::move(formats)});
        if (!found.ok()) throw std::runtime_error(found.error().message());
        space = std::move(*found);
        auto made = Trials::create(*source, space, "test", texts, options, pool, {});
        if (!made.ok()) throw std::runtime_error(made.error().message());
        trials.emplace(std::move(*made));
    }
};

// Records x and g of every linear in the backward pass.
class Recorder : public Observer {
public:
    struct Rows {
        std::vector<float> x, g;
    };
    std::map<std::string, Rows> linears;
    Status input(const Linear& linear, const float* x, int64_t rows, int64_t cols, std::span<const int32_t>) override {
        auto& to = linears[linear.name].x;
        to.insert(to.end(), x, x + rows * cols);
        return Ok{};
    }
    Status kv(const std::string&, const float*, const float*, int64_t, int64_t, int64_t) override { return Ok{}; }
    Status output_gradient(const Linear& linear, const float* g, int64_t rows, int64_t cols,
                           std::span<const int32_t>) override {
        auto& to = linears[linear.name].g;
        to.insert(to.end(), g, g + rows * cols);
        return Ok{};
    }
};

std::map<std::string, Recorder::Rows> record(Bed& bed, const ScoreOptions& options) {
    Recorder recorder;
    const ModelConfig config = std::move(*model_config(*bed.source));
    auto work = std::move(*Workspace::create(options.compute, {}, bed.pool));
    const WeightOptions weights{.compute = options.compute, .kv = KvFormat::none};
    WeightSource ends(*bed.source, weights, bed.pool, WeightSource::Mode::load);
    const auto embedding = std::move(*Embedding::load(config, ends));
    const auto head = std::move(*Head::load(config, ends));
    const auto done = backward(config, embedding, head, streamed_blocks(*bed.source, config, weights, bed.pool),
                               bed.texts, {.sampled = PhiloxStream{options.seed, 0}}, work, &recorder, nullptr);
    EXPECT_TRUE(done.ok());
    return std::move(recorder.linears);
}

std::vector<float> decoded(const Checkpoint& checkpoint, size_t index) {
    const CheckpointTensor& t = checkpoint.tensors()[index];
    std::vector<float> w(static_cast<size_t>(t.rows() * t.cols()));
    if (t.quantized()) {
        QuantMatrix scratch;
        (*select_quantize_kernels("ref"))->decode(*checkpoint.read_quant(index, 0, t.rows(), scratch), w.data());
        checkpoint.done_with(index, 0, t.rows());
    } else {
        Matrix scratch;
        const MatrixView view = *checkpoint.read_plain(index, 0, t.rows(), scratch);
        for (size_t i = 0; i < w.size(); ++i) {
            uint16_t code;
            std::memcpy(&code, view.data + 2 * i, 2);
            w[i] = std::bit_cast<float>(uint32_t{code} << 16);
        }
    }
    return w;
}

TEST(SearchScores, GradientScoresFollowTheFormula) {
    for (const ScoreMethod method : {ScoreMethod::fisher, ScoreMethod::modelopt}) {
        const ScoreOptions options{.method = method};
        Bed bed({"w4a16_nvfp4", "w8a16_fp8"}, options);
        const auto scores = search_scores(*bed.trials, "test", bed.texts, options, {});
        ASSERT_TRUE(scores.ok()) << scores.error().message();
        const auto rows = record(bed, options);
        EXPECT_EQ(scores->tokens, 120);
        for (size_t g = 0; g < bed.space.groups.size(); ++g) {
            const SearchGroup& group = bed.space.groups[g];
            ASSERT_EQ(group.candidates.size(), 3u) << group.name;
            for (size_t f = 0; f < 2; ++f) {
                const auto trial = std::move(*bed.trials->uniform(f));
                double expected = 0;
                for (const size_t i : group.tensors) {
                    const CheckpointTensor& t = bed.source->tensors()[i];
                    const auto& [x, gradient] = rows.at(t.name.substr(0, t.name.size() - 7));
                    const auto w = decoded(*bed.source, i), q = decoded(*trial, i);
                    const auto n = static_cast<size_t>(t.rows()), k = static_cast<size_t>(t.cols());
                    for (size_t row = 0; row < x.size() / k; ++row) {
                        double dot = 0, squares = 0;
                        for (size_t j = 0; j < n; ++j) {
                            double d = 0;
                            for (size_t c = 0; c < k; ++c) d += (double(q[j * k + c]) - w[j * k + c]) * x[row * k + c];
                            dot += gradient[row * n + j] * d;
                            squares += gradient[row * n + j] * d * gradient[row * n + j] * d;
                        }
                        expected += method == ScoreMethod::fisher ? dot * dot / 240 : squares;
                    }
                }
                EXPECT_GT(expected, 0);
                EXPECT_NEAR(scores->values[g][f], expected, 1e-3 * expected) << group.name;
            }
            EXPECT_EQ(scores->values[g][2], 0.0);
        }
    }
}

TEST(SearchScores, ScoresIncludeInputQuantization) {
    Bed weights({"w4a16_nvfp4"}), both({"nvfp4"});
    const auto w = search_scores(*weights.trials, "test", weights.texts, {}, {});
    const auto wa = search_scores(*both.trials, "test", both.texts, {}, {});
    ASSERT_TRUE(w.ok() && wa.ok());
    double sum_w = 0, sum_wa = 0;
    for (size_t g = 0; g < w->values.size(); ++g) sum_w += w->values[g][0], sum_wa += wa->values[g][0];
    EXPECT_GT(sum_wa, 1.2 * sum_w);
}

TEST(SearchScores, ThreadsDoNotChangeBits) {
    Bed bed({"nvfp4", "fp8"});
    const auto scores = search_scores(*bed.trials, "test", bed.texts, {}, {});
    ASSERT_TRUE(scores.ok());
    ThreadPool one(1);
    const auto trials = Trials::create(*bed.source, bed.space, "test", bed.texts, {}, one, {});
    ASSERT_TRUE(trials.ok());
    EXPECT_EQ(search_scores(*trials, "test", bed.texts, {}, {})->values, scores->values);
}

TEST(SearchScores, KlOfAGroupIsThatOfTheWholeModelWithIt) {
    Bed bed({"nvfp4", "fp8"});
    auto meter = std::move(*KlMeter::create(*bed.source, bed.texts, {}, bed.pool));
    EXPECT_EQ(*meter.measure(*bed.source), 0.0);
    const auto groups = meter.measure_groups(*bed.trials, nullptr, {});
    ASSERT_TRUE(groups.ok()) << groups.error().message();
    for (size_t g = 0; g < bed.space.groups.size(); ++g) {
        std::vector<size_t> choice(bed.space.groups.size(), bed.space.none());
        for (size_t i = 0; i + 1 < bed.space.groups[g].candidates.size(); ++i) {
            choice[g] = bed.space.groups[g].candidates[i];
            EXPECT_EQ((*groups)[g][i], *meter.measure(**bed.trials->of(choice))) << bed.space.groups[g].name;
        }
        EXPECT_EQ((*groups)[g].back(), 0.0);
        EXPECT_GT((*groups)[g].front(), 0.0);
    }
}

// A search runs the same bytes that `quantize` writes.
TEST(TrialCheckpoint, HoldsTheBytesThatQuantizeStores) {
    Bed bed({"w4a16_nvfp4", "mxfp8"});
    for (size_t f = 0; f < 2; ++f) {
        std::vector<size_t> choice;
        for (const SearchGroup& g : bed.space.groups)
            choice.push_back(std::ranges::count(g.candidates, f) ? f : bed.space.none());
        const auto plan = plan_of(bed.space, choice, bed.source->tensors(), bed.source->config());
        ASSERT_TRUE(plan.ok()) << plan.error().message();
        const JobOptions options = options_for(*plan);
        TempDir dir;
        const auto out = open_export({.out = dir / "out",
                                      .tensors = export_tensors(*bed.source, *plan, options.scales),
                                      .config = bed.source->config()},
                                     ExportMode::create);
        ASSERT_TRUE(out.ok()) << out.error().message();
        ASSERT_TRUE(run_quantize(*bed.source, *plan, options, **out, bed.pool, {}).ok());
        ASSERT_TRUE((*out)->finish().ok());
        const auto stored = Checkpoint::open(dir / "out");
        ASSERT_TRUE(stored.ok()) << stored.error().message();
        const auto trial = std::move(*bed.trials->of(choice));
        for (size_t i = 0; i < trial->tensors().size(); ++i) {
            const CheckpointTensor& t = trial->tensors()[i];
            if (!t.quantized()) continue;
            const auto other = std::ranges::find((*stored)->tensors(), t.name, &CheckpointTensor::name);
            ASSERT_NE(other, (*stored)->tensors().end());
            EXPECT_EQ(other->format, t.format);
            const auto at = static_cast<size_t>(other - (*stored)->tensors().begin());
            EXPECT_EQ(decoded(*trial, i), decoded(**stored, at)) << t.name;
        }
    }
}

// A kill leaves only the first lines of the journal: the rest is scored again, with the same bits.
TEST(SearchScores, ContinueWhereAJournalEnds) {
    for (const ScoreMethod method : {ScoreMethod::fisher, ScoreMethod::modelopt, ScoreMethod::kl}) {
        Bed bed({"nvfp4", "fp8"});
        ScoreOptions options;
        options.method = method;
        const auto expected = search_scores(*bed.trials, "test", bed.texts, options, {});
        ASSERT_TRUE(expected.ok()) << expected.error().message();
        TempDir dir;
        const auto run = [&] {
            auto journal = Journal::open(dir.path(), {{"job", "test"}});
            EXPECT_TRUE(journal.ok()) << journal.error().message();
            options.journal = journal->get();
            const auto scores = search_scores(*bed.trials, "test", bed.texts, options, {});
            EXPECT_TRUE(scores.ok()) << scores.error().message();
            return scores->values;
        };
        EXPECT_EQ(run(), expected->values);
        const std::filesystem::path file = dir / Journal::file_name;
        const std::string all = read_file(file);
        const auto lines = static_cast<size_t>(std::ranges::count(all, '\n'));
        EXPECT_EQ(lines, 1 + bed.space.groups.size());
        for (size_t kept = 1; kept < lines; kept += 3) {
            size_t end = 0;
            for (size_t i = 0; i < kept; ++i) end = all.find('\n', end) + 1;
            write_file(file, std::string_view(all).substr(0, end + 5));  // followed by an incomplete line
            EXPECT_EQ(run(), expected->values) << method_name(method) << ", " << kept << " lines";
            EXPECT_EQ(static_cast<size_t>(std::ranges::count(read_file(file), '\n')), lines) << "scored what it knew";
        }
    }
}

}  // namespace
}  // namespace nibble::test
