// Tests one step: its gradient against finite differences and the backward pass of calibration, its independence of
// batches and threads, and a falling loss.
#include "train/small_trainer.h"

#include "checkpoint/export.h"
#include "model/cpu/backward.h"
#include "model/models.h"
#include "train/schedule.h"
#include "train/train_run.h"

#include <cmath>
#include <map>

namespace nibble::test {
namespace {

const TrainerOptions in_f32{.precision = {.recipe = TrainRecipe::fp32}};

class SumOfGradients : public GradientSink {
public:
    Status add(const std::string& tensor, const float* gradient, int64_t rows, int64_t cols) override {
        std::vector<float>& to = sums[tensor];
        to.resize(static_cast<size_t>(rows * cols));
        for (int64_t i = 0; i < rows * cols; ++i) to[static_cast<size_t>(i)] += gradient[i];
        return Ok{};
    }
    std::map<std::string, std::vector<float>> sums;
};

TEST(Trainer, GradientOfWholeTextsIsThatOfTheBackwardPass) {
    for (const bool tied : {false, true}) {
        ThreadPool pool(2);
        Json config = small_llama();
        config["tie_word_embeddings"] = tied;
        auto checkpoint = small_checkpoint(config);
        if (tied) checkpoint->remove("lm_head.weight");
        auto parameters = Parameters::copy(*checkpoint, DType::f32, pool);
        ASSERT_TRUE(parameters.ok()) << parameters.error().message();
        auto trainer = Trainer::create(*parameters, in_f32, pool);
        ASSERT_TRUE(trainer.ok()) << trainer.error().message();
        const int64_t rows = 5, seq = 21;
        std::vector<int32_t> tokens;
        for (int64_t i = 0; i < rows * (seq + 1); ++i) tokens.push_back(static_cast<int32_t>(i * i * 7 % 48));
        TrainBatch batch = next_token_batch(tokens, rows, seq);
        for (int64_t r = 0; r < rows; ++r) batch.labels[static_cast<size_t>((r + 1) * seq - 1)] = -1;
        const auto step = (*trainer)->backward({&batch, 1});
        ASSERT_TRUE(step.ok()) << step.error().message();

        std::vector<std::vector<int32_t>> texts;
        for (int64_t r = 0; r < rows; ++r)
            texts.emplace_back(batch.tokens.begin() + r * seq, batch.tokens.begin() + (r + 1) * seq);
        const auto model = Model::load(checkpoint, {{.compute = Compute::f32}}, pool);
        ASSERT_TRUE(model.ok());
        SumOfGradients want;
        const auto loss = backward(model->config(), model->embedding(), model->head(), resident_blocks(*model), texts,
                                   {}, model->workspace(), nullptr, &want);
        ASSERT_TRUE(loss.ok()) << loss.error().message();
        EXPECT_NEAR(step->loss, loss->mean(), 1e-6);
        if (tied) {
            std::vector<float>& e = want.sums["model.embed_tokens.weight"];
            for (size_t i = 0; i < e.size(); ++i) e[i] += want.sums["lm_head.weight"][i];
            want.sums.erase("lm_head.weight");
        }
        EXPECT_EQ(want.sums.size(), (*parameters)->count());
        for (const auto& [name, values] : want.sums) {
            const auto id = (*parameters)->id(name);
            ASSERT_TRUE(id.ok());
            const auto got = (*trainer)->gradients().gradient(*id);
            ASSERT_EQ(got.size(), values.size()) << name;
            double norm = 0, apart = 0;
            for (size_t i = 0; i < values.size(); ++i) {
                norm += double{values[i]} * values[i];
                apart = std::max(apart, std::abs(double{got[i]} - values[i]));
            }
            EXPECT_GT(norm, 0) << name;
            EXPECT_LE(apart, 2e-6 * std::sqrt(norm)) << name;
        }
    }
}

// With packed documents, weights and missing labels, the loss changes as the gradient predicts.
TEST(Trainer, GradientIsTheSlopeOfTheLoss) {
    ThreadPool pool(2);
    const auto trainer = small_trainer(pool, in_f32);
    const TrainBatch batch = random_batch(3, 40, 48, 3);
    const auto step = trainer->backward({&batch, 1});
    ASSERT_TRUE(step.ok()) << step.error().message();
    Parameters& p = trainer->parameters();
    std::vector<std::vector<float>> gradients;
    for (size_t id = 0; id < p.count(); ++id) {
        const auto g = trainer->gradients().gradient(id);
        gradients.emplace_back(g.begin(), g.end());
    }
    std::mt19937 random(1);
    int steep = 0;
    for (size_t id = 0; id < p.count(); ++id) {
        // Moves along a random direction of the tensor, both ways.
        std::vector<float> direction(p.master(id).size()), before(p.master(id).begin(), p.master(id).end());
        double slope = 0, length = 0;
        for (size_t i = 0; i < direction.size(); ++i) {
            direction[i] = random() % 2 ? 1.0f : -1.0f;
            slope += double{direction[i]} * gradients[id][i];
            length += 1;
        }
        const double h = 2e-2 / std::sqrt(length);
        double losses[2];
        for (int way : {0, 1}) {
            for (size_t i = 0; i < before.size(); ++i)
                p.master(id)[i] = before[i] + static_cast<float>((way ? -h : h) * direction[i]);
            ASSERT_TRUE(trainer->renew().ok());
            const auto loss = trainer->evaluate({&batch, 1});
            ASSERT_TRUE(loss.ok());
            losses[way] = *loss;
        }
        std::ranges::copy(before, p.master(id).begin());
        const double measured = (losses[0] - losses[1]) / (2 * h), norm = std::sqrt(length);
        EXPECT_NEAR(measured, slope, 1e-5 * norm + 0.01 * std::abs(slope)) << p.tensors()[id].name;
        if (std::abs(slope) > 1e-3 * norm) ++steep;
    }
    EXPECT_GT(steep, 10);
}

std::vector<float> trained(int threads, const std::vector<TrainBatch>& batches, TrainerOptions options, int steps) {
    ThreadPool pool(threads);
    const auto trainer = small_trainer(pool, options);
    for (int s = 0; s < steps; ++s) {
        const auto step = trainer->step(batches, 0.01);
        EXPECT_TRUE(step.ok()) << step.error().message();
    }
    return all_masters(trainer->parameters());
}

TEST(Trainer, ThreadsAndBatchesChangeNoBit) {
    for (const TrainRecipe recipe : {TrainRecipe::fp32, TrainRecipe::bf16}) {
        const TrainerOptions options{.precision = {.recipe = recipe}};
        const TrainBatch all = random_batch(7, 48, 48, 9);
        const std::vector<float> want = trained(1, {all}, options, 3);
        EXPECT_EQ(trained(3, {all}, options, 3), want);
        EXPECT_EQ(trained(2, {rows_of(all, 0, 2), rows_of(all, 2, 5)}, options, 3), want);
        std::vector<TrainBatch> single;
        for (int64_t r = 0; r < 7; ++r) single.push_back(rows_of(all, r, 1));
        EXPECT_EQ(trained(2, single, options, 3), want);
        EXPECT_NE(trained(1, {random_batch(7, 48, 48, 10)}, options, 3), want);
    }
}

TEST(Trainer, DocumentsOfARowAreTextsOfTheirOwn) {
    ThreadPool pool(2);
    const auto trainer = small_trainer(pool, {});
    const TrainBatch packed = random_batch(1, 48, 48, 4);
    std::vector<float> together(48);
    ASSERT_TRUE(trainer->log_probs(packed, together).ok());
    ASSERT_GT(packed.documents.size(), 2U);
    for (size_t d = 0; d < packed.documents.size(); ++d) {
        const auto from = static_cast<size_t>(packed.documents[d]);
        const size_t to = d + 1 < packed.documents.size() ? static_cast<size_t>(packed.documents[d + 1]) : 48;
        TrainBatch alone{.rows = 1, .seq = static_cast<int64_t>(to - from), .documents = {0}};
        alone.tokens.assign(packed.tokens.begin() + long(from), packed.tokens.begin() + long(to));
        alone.labels.assign(packed.labels.begin() + long(from), packed.labels.begin() + long(to));
        std::vector<float> values(to - from);
        ASSERT_TRUE(trainer->log_probs(alone, values).ok());
        for (size_t i = 0; i < values.size(); ++i) EXPECT_EQ(values[i], together[from + i]);
    }
}

TEST(Trainer, LossFallsAndTheModelReadsTheNewWeights) {
    for (const TrainRecipe recipe : {TrainRecipe::fp32, TrainRecipe::bf16}) {
        ThreadPool pool(2);
        const auto trainer = small_trainer(pool, {.precision = {.recipe = recipe}});
        const std::string text = "the cat sat on the mat and the dog sat on the log ";
        std::vector<int32_t> tokens;
        for (int i = 0; i < 4 * 33; ++i) tokens.push_back(text[static_cast<size_t>(i) % text.size()] % 48);
        const TrainBatch batch = next_token_batch(tokens, 4, 32);
        double first = 0, last = 0;
        for (int s = 0; s < 30; ++s) {
            const auto step = trainer->step({&batch, 1}, 0.01);
            ASSERT_TRUE(step.ok()) << step.error().message();
            (s == 0 ? first : last) = step->loss;
        }
        EXPECT_GT(first, 3.0);
        EXPECT_LT(last, 0.5);
        // A model that is loaded again from the same parameters has the same bits.
        const auto again = Model::load(std::make_shared<Parameters>(trainer->parameters()),
                                       {{.compute = recipe == TrainRecipe::fp32 ? Compute::f32 : Compute::bf16}}, pool);
        ASSERT_TRUE(again.ok()) << again.error().message();
        const std::vector<std::vector<int32_t>> texts{{tokens.begin(), tokens.begin() + 32}};
        EXPECT_EQ(all_logits(trainer->model(), texts), all_logits(*again, texts));
    }
}

// The policy loss of reinforcement learning can be any function of the labels' log-probabilities.
TEST(Trainer, AnObjectiveOfLogProbabilitiesEqualsCrossEntropy) {
    ThreadPool pool(2);
    const TrainBatch batch = random_batch(3, 32, 48, 6);
    double weight = 0;
    for (size_t i = 0; i < batch.labels.size(); ++i) weight += batch.labels[i] < 0 ? 0.0 : double{batch.weights[i]};
    const RowObjective objective = [&](int64_t row, std::span<const float> log_probs, std::span<float> slopes,
                                       double& loss) -> Status {
        for (size_t i = 0; i < slopes.size(); ++i) {
            const size_t at = static_cast<size_t>(row) * 32 + i;
            if (batch.labels[at] < 0) continue;
            slopes[i] = static_cast<float>(-double{batch.weights[at]} / weight);
            loss -= double{batch.weights[at]} * double{log_probs[i]} / weight;
        }
        return Ok{};
    };
    const auto one = small_trainer(pool, {}), other = small_trainer(pool, {});
    const auto a = one->step({&batch, 1}, 0.01), b = other->step({&batch, 1}, objective, 0.01);
    ASSERT_TRUE(a.ok() && b.ok());
    EXPECT_NEAR(a->loss, b->loss, 1e-12);
    EXPECT_EQ(all_masters(one->parameters()), all_masters(other->parameters()));
}

TEST(Trainer, ErrorsDescribeABadBatch) {
    ThreadPool pool(1);
    const auto trainer = small_trainer(pool, {});
    const auto error = [&](TrainBatch b) {
        const auto step = trainer->step({&b, 1}, 0.01);
        return step.ok() ? "" : step.error().message();
    };
    const TrainBatch good = random_batch(2, 16, 48, 1);
    EXPECT_EQ(error(good), "");
    TrainBatch b = good;
    b.tokens[20] = 48;
    EXPECT_EQ(error(b), "row 1, position 4: token 48 is not in the vocabulary of 48");
    b = good;
    b.labels[3] = -2;
    EXPECT_EQ(error(b), "row 0, position 3: label -2 is not in the vocabulary of 48");
    b = good;
    b.weights[3] = NAN;
    EXPECT_EQ(error(b), "row 0, position 3: weight nan is not finite");
    b = good;
    std::erase(b.documents, 16);
    EXPECT_EQ(error(b), "row 1 of a batch begins within a document");
    b = good;
    std::ranges::fill(b.labels, -1);
    EXPECT_EQ(error(b), "no label of the step has a weight above 0");
    b = good;
    b.labels.pop_back();
    EXPECT_EQ(error(b), "a batch of 2 x 16 has 32 tokens, 31 labels and 32 weights");
}

TEST(Trainer, AStepThatIsNotFiniteChangesNothing) {
    ThreadPool pool(1);
    TrainBatch batch = random_batch(2, 16, 48, 1);
    const RowObjective infinite = [](int64_t, std::span<const float>, std::span<float> slopes, double& loss) -> Status {
        slopes[0] = 1;
        loss = INFINITY;
        return Ok{};
    };
    batch.labels[0] = batch.labels[16] = 1;
    for (const bool skip : {false, true}) {
        const auto trainer = small_trainer(pool, {.skip_nonfinite = skip});
        const std::vector<float> before = all_masters(trainer->parameters());
        const auto step = trainer->step({&batch, 1}, infinite, 0.01);
        EXPECT_EQ(step.ok(), skip);
        EXPECT_EQ(step.ok() && step->skipped, skip);
        EXPECT_EQ(all_masters(trainer->parameters()), before);
        EXPECT_EQ(trainer->optimizer().steps(), 0);
    }
}

// Every second row has no label, like a window of a chat without an assistant message.
class HalfOfItSilent : public BatchSource {
public:
    Result<TrainBatch> next(int64_t rows) override {
        TrainBatch batch = random_batch(rows, 16, 48, ++calls_);
        if (calls_ % 2 == 0) std::ranges::fill(batch.labels, -1);
        return batch;
    }
    Json place() const override { return calls_; }
    Status set_place(const Json&) override { return Ok{}; }

private:
    uint32_t calls_ = 0;
};

TEST(TrainRun, AStepWithoutALearnedTokenIsSkipped) {
    ThreadPool pool(1);
    const auto trainer = small_trainer(pool, in_f32);
    HalfOfItSilent source;
    std::vector<bool> skipped;
    std::vector<float> before = all_masters(trainer->parameters());
    const auto look = [&](const StepReport& r) -> Status {
        skipped.push_back(r.result.skipped);
        const std::vector<float> now = all_masters(trainer->parameters());
        EXPECT_EQ(now == before, r.result.skipped) << r.step;
        EXPECT_EQ(r.result.weight == 0, r.result.skipped);
        EXPECT_EQ(r.result.tokens, r.result.skipped ? 0 : 2 * 16);
        before = now;
        return Ok{};
    };
    const auto done =
        run_training({.steps = 4, .batch = 2, .sequence = 16}, *trainer, source, nullptr, {.on_step = look});
    ASSERT_TRUE(done.ok()) << done.error().message();
    EXPECT_EQ(skipped, (std::vector<bool>{false, true, false, true}));
}

TEST(Trainer, AnOutlierStopsARunWithOutliersStop) {
    ThreadPool pool(1);
    TrainerOptions options = in_f32;
    options.optimizer.skip_above = 2, options.optimizer.skip_window = 1, options.optimizer.stop_at_outlier = true;
    const auto trainer = small_trainer(pool, options);
    TrainBatch batch = random_batch(1, 16, 48, 1);
    double size = 1;
    const RowObjective scaled = [&](int64_t, std::span<const float>, std::span<float> slopes, double& loss) -> Status {
        std::ranges::fill(slopes, static_cast<float>(-size));
        loss = 1;
        return Ok{};
    };
    ASSERT_TRUE(trainer->step({&batch, 1}, scaled, 0).ok());
    const std::vector<float> before = all_masters(trainer->parameters());
    size = 9;
    const auto stopped = trainer->step({&batch, 1}, scaled, 1e-2);
    ASSERT_FALSE(stopped.ok());
    EXPECT_NE(stopped.error().message().find("is an outlier and optimizer.outliers is stop; nothing was changed"),
              std::string::npos);
    EXPECT_EQ(all_masters(trainer->parameters()), before);
}

}  // namespace
}  // namespace nibble::test
