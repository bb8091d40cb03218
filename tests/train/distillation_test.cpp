// Tests the distillation loss: value and gradient by hand, and a student that approaches its teacher.
#include "train/small_trainer.h"

#include "model/loss.h"

#include <cmath>

namespace nibble::test {
namespace {

std::shared_ptr<const Model> small_teacher(ThreadPool& pool, Compute compute, uint32_t nudge) {
    auto checkpoint = small_checkpoint();
    std::mt19937 random(nudge);
    for (size_t i = 0; i < 40; ++i)
        checkpoint->set("lm_head.weight", i, 0.5f * static_cast<float>(random() % 7) - 1.5f);
    ModelOptions options;
    options.compute = compute;
    auto model = Model::load(checkpoint, options, pool);
    EXPECT_TRUE(model.ok()) << model.error().message();
    return std::make_shared<const Model>(*std::move(model));
}

// Returns the log-softmax of every row of a batch, in FP64.
std::vector<std::vector<double>> log_softmax_rows(const Model& model, const TrainBatch& b) {
    std::vector<std::vector<double>> out;
    const int64_t vocab = model.config().vocab;
    for (size_t d = 0; d < b.documents.size(); ++d) {
        const auto from = static_cast<size_t>(b.documents[d]);
        const size_t to = d + 1 < b.documents.size() ? static_cast<size_t>(b.documents[d + 1]) : b.tokens.size();
        std::vector<float> logits((to - from) * static_cast<size_t>(vocab));
        EXPECT_TRUE(
            model
                .forward(Batch({{.sequence = nullptr, .tokens = std::span(b.tokens).subspan(from, to - from)}}), logits)
                .ok());
        for (size_t i = 0; i < to - from; ++i) {
            const float* row = logits.data() + i * static_cast<size_t>(vocab);
            double sum = 0;
            for (int64_t v = 0; v < vocab; ++v) sum += std::exp(double{row[v]});
            std::vector<double>& made = out.emplace_back();
            for (int64_t v = 0; v < vocab; ++v) made.push_back(double{row[v]} - std::log(sum));
        }
    }
    return out;
}

double loss_by_hand(const Model& student, const Model& teacher, const TrainBatch& b, double share) {
    const auto p = log_softmax_rows(student, b), q = log_softmax_rows(teacher, b);
    double loss = 0, weight = 0;
    for (size_t i = 0; i < b.labels.size(); ++i) {
        if (b.labels[i] < 0) continue;
        double divergence = 0;
        for (size_t v = 0; v < p[i].size(); ++v) divergence += std::exp(q[i][v]) * (q[i][v] - p[i][v]);
        const double w = double{b.weights[i]};
        loss += w * ((1 - share) * divergence - share * p[i][static_cast<size_t>(b.labels[i])]);
        weight += w;
    }
    return loss / weight;
}

TEST(Distillation, LossAndGradientAreThoseOfTheFormula) {
    for (const float share : {0.0f, 0.25f, 1.0f}) {
        ThreadPool pool(2);
        const auto teacher = small_teacher(pool, Compute::f32, 5);
        const auto trainer = small_trainer(
            pool, {.precision = {.recipe = TrainRecipe::fp32}, .teacher = teacher, .cross_entropy = share});
        const TrainBatch batch = random_batch(2, 17, 48, 3);
        const auto step = trainer->backward({&batch, 1});
        ASSERT_TRUE(step.ok()) << step.error().message();
        EXPECT_NEAR(step->loss, loss_by_hand(trainer->model(), *teacher, batch, share), 2e-6);
        Parameters& parameters = trainer->parameters();
        for (const char* name : {"model.layers.0.mlp.down_proj.weight", "model.layers.1.self_attn.q_proj.weight",
                                 "lm_head.weight", "model.norm.weight", "model.embed_tokens.weight"}) {
            const size_t id = *parameters.id(name);
            const auto gradient = trainer->gradients().gradient(id);
            const std::vector<float> direction(gradient.begin(), gradient.end());
            const std::vector<float> before(parameters.master(id).begin(), parameters.master(id).end());
            double norm = 0;
            for (const float g : direction) norm += double{g} * g;
            norm = std::sqrt(norm);
            ASSERT_GT(norm, 0) << name;
            const double move = 2e-3;
            double sides[2];
            for (const int side : {0, 1}) {
                for (size_t i = 0; i < before.size(); ++i)
                    parameters.master(id)[i] =
                        before[i] + static_cast<float>((side ? -1 : 1) * move * direction[i] / norm);
                ASSERT_TRUE(trainer->renew().ok());
                sides[side] = loss_by_hand(trainer->model(), *teacher, batch, share);
            }
            std::ranges::copy(before, parameters.master(id).begin());
            ASSERT_TRUE(trainer->renew().ok());
            EXPECT_NEAR((sides[0] - sides[1]) / (2 * move), norm, 0.01 * norm + 1e-5) << name << ", share " << share;
        }
    }
}

TEST(Distillation, WithOnlyCrossEntropyItIsTheUsualStep) {
    ThreadPool pool(2);
    const TrainBatch batch = random_batch(3, 20, 48, 8);
    const auto plain = small_trainer(pool, {});
    const auto with_teacher =
        small_trainer(pool, {.teacher = small_teacher(pool, Compute::bf16, 5), .cross_entropy = 1.0f});
    const auto a = plain->backward({&batch, 1}), b = with_teacher->backward({&batch, 1});
    ASSERT_TRUE(a.ok() && b.ok());
    EXPECT_NEAR(a->loss, b->loss, 1e-6);
    EXPECT_NEAR(a->gradient_norm, b->gradient_norm, 1e-5 * a->gradient_norm);
}

TEST(Distillation, AQuantizedStudentComesNearer) {
    ThreadPool pool(2);
    // The teacher has the student's own weights, so the remaining loss is the rounding error.
    auto checkpoint = small_checkpoint();
    auto model = Model::load(checkpoint, {}, pool);
    ASSERT_TRUE(model.ok());
    const auto trainer = small_trainer(pool, {.precision = *train_precision_from_name("nvfp4"),
                                              .optimizer = {.weight_decay = 0},
                                              .teacher = std::make_shared<const Model>(*std::move(model))});
    const TrainBatch batch = random_batch(8, 32, 48, 4);
    trainer->begin(0, 40);
    std::vector<double> losses;
    for (int s = 0; s < 40; ++s) {
        const auto step = trainer->step({&batch, 1}, 2e-3);
        ASSERT_TRUE(step.ok()) << step.error().message();
        losses.push_back(step->loss);
    }
    EXPECT_GT(losses.front(), 0);
    EXPECT_LT(losses.back(), 0.7 * losses.front());
}

TEST(Distillation, AnotherVocabularyIsRefused) {
    ThreadPool pool(1);
    Json config = small_llama();
    config["vocab_size"] = 52;
    auto other = Model::load(small_checkpoint(config), {}, pool);
    ASSERT_TRUE(other.ok());
    const auto made = Trainer::create(small_parameters(pool, DType::bf16),
                                      {.teacher = std::make_shared<const Model>(*std::move(other))}, pool);
    ASSERT_FALSE(made.ok());
    EXPECT_EQ(made.error().message(), "the teacher has a vocabulary of 52, the model has 48");
}

}  // namespace
}  // namespace nibble::test
