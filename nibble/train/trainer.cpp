#include "train/trainer.h"

#include "model/loss.h"
#include "train/lora.h"
#include "train/train_products.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace nibble {

// One row of a batch as the model takes it.
struct Trainer::Row {
    Row(const TrainBatch& b, int64_t row) : batch(segments(b, row)) {
        const auto at = static_cast<size_t>(row * b.seq), n = static_cast<size_t>(b.seq);
        labels = std::span(b.labels).subspan(at, n);
        if (!b.weights.empty()) weights = std::span(b.weights).subspan(at, n);
    }
    static std::vector<Segment> segments(const TrainBatch& b, int64_t row) {
        const int64_t begin = row * b.seq, end = begin + b.seq;
        std::vector<Segment> list;
        auto at = std::ranges::lower_bound(b.documents, begin);
        while (at != b.documents.end() && *at < end) {
            const int64_t from = *at++, to = at == b.documents.end() ? end : std::min(*at, end);
            const auto tokens = std::span(b.tokens).subspan(static_cast<size_t>(from), static_cast<size_t>(to - from));
            list.push_back({.sequence = nullptr, .tokens = tokens, .logits_from = to - from});
        }
        return list;
    }
    Batch batch;
    std::span<const int32_t> labels;
    std::span<const float> weights;  // empty: 1 each
};

Trainer::Trainer(std::shared_ptr<Parameters> parameters, const TrainerOptions& options, Model model, bool frozen,
                 ThreadPool& pool)
    : parameters_(std::move(parameters)),
      frozen_(frozen),
      options_(options),
      pool_(pool),
      model_(std::make_unique<Model>(std::move(model))),
      gradients_(*parameters_, model_->config().head, frozen, pool),
      optimizer_(*parameters_, options.optimizer) {}

namespace {

ModelOptions model_options(const TrainerOptions& options) {
    ModelOptions like;
    like.compute = options.precision.recipe == TrainRecipe::fp32 ? Compute::f32 : Compute::bf16;
    like.kernels = options.kernels;
    return like;
}

}  // namespace

Result<std::unique_ptr<Trainer>> Trainer::create(std::shared_ptr<const Checkpoint> base, const TrainLora& lora,
                                                 const TrainerOptions& options, ThreadPool& pool) {
    NIBBLE_TRY(Model model, Model::load(base, model_options(options), pool));
    const DType published = model.workspace().bf16() ? DType::bf16 : DType::f32;
    NIBBLE_TRY(auto adapters, lora_parameters(model, lora, published, options.seed, pool));
    std::unique_ptr<Trainer> made(new Trainer(std::move(adapters), options, std::move(model), true, pool));
    NIBBLE_TRY(made->products_, LoraProducts::create(*made->model_, *base, *made->parameters_, lora, pool));
    made->model_->workspace().products = made->products_.get();
    return made;
}

Result<std::unique_ptr<Trainer>> Trainer::create(std::shared_ptr<Parameters> parameters, const TrainerOptions& options,
                                                 ThreadPool& pool) {
    NIBBLE_TRY(Model model, Model::load(parameters, model_options(options), pool));
    std::unique_ptr<Trainer> made(new Trainer(std::move(parameters), options, std::move(model), false, pool));
    NIBBLE_TRY(made->products_,
               TrainProducts::create(*made->model_, *made->parameters_, options.precision, options.seed, pool));
    made->model_->workspace().products = made->products_.get();
    return made;
}

void Trainer::begin(int64_t step, int64_t steps) { step_ = step, steps_ = steps; }

Status Trainer::renew() {
    parameters_->publish(pool_);
    return frozen_ ? Status(Ok{}) : model_->renew();
}

// The residual stream after every block, into inputs_; without `keep` only the last.
Status Trainer::forward_row(const Row& row, bool keep) {
    Workspace& work = model_->workspace();
    const auto blocks = model_->blocks();
    const auto size = static_cast<size_t>(row.batch.rows() * model_->config().hidden);
    inputs_.resize(keep ? blocks.size() + 1 : 1);
    inputs_[0].resize(size);
    float* x = inputs_[0].data();
    for (size_t s = 0; s < row.batch.segments().size(); ++s)
        NIBBLE_CHECK(model_->embedding().forward(row.batch.segments()[s].tokens,
                                                 x + row.batch.row(s) * model_->config().hidden, work));
    for (size_t b = 0; b < blocks.size(); ++b) {
        if (keep) {
            inputs_[b + 1] = inputs_[b];
            x = inputs_[b + 1].data();
        }
        NIBBLE_CHECK(blocks[b].forward(row.batch, x, work, nullptr));
    }
    return Ok{};
}

// After forward_row(row, true): the row's gradient into the tree.
Status Trainer::backward_row(const Row& row, std::span<const float> slopes, std::span<float> log_probs) {
    Workspace& work = model_->workspace();
    const auto blocks = model_->blocks();
    const ModelConfig& config = model_->config();
    std::vector<float> dx(inputs_.back().size());
    NIBBLE_CHECK(label_gradient(model_->head(), inputs_.back().data(), row.labels, slopes, dx.data(), log_probs, work,
                                &gradients_));
    for (size_t b = blocks.size(); b-- > 0;)
        NIBBLE_CHECK(blocks[b].backward(row.batch, inputs_[b].data(), dx.data(), work, nullptr, &gradients_));
    std::vector<int32_t> ids;
    for (const Segment& s : row.batch.segments()) ids.insert(ids.end(), s.tokens.begin(), s.tokens.end());
    NIBBLE_CHECK(gradients_.add_rows(config.embedding, ids, dx.data(), config.hidden, config.embedding_scale));
    gradients_.end_row();
    return Ok{};
}

Result<TrainStep> Trainer::backward(std::span<const TrainBatch> batches) {
    double weight = 0;
    for (const TrainBatch& b : batches)
        for (size_t i = 0; i < b.labels.size(); ++i)
            if (b.labels[i] >= 0) weight += b.weights.empty() ? 1.0 : double{b.weights[i]};
    if (!(weight > 0)) return fail("no label of the step has a weight above 0");
    TrainStep step{.weight = weight};
    gradients_.begin_step();
    products_->begin_step(step_, steps_);
    int64_t number = 0;
    std::vector<float> slopes, log_probs;
    for (const TrainBatch& b : batches) {
        NIBBLE_CHECK(check(b, model_->config().vocab));
        slopes.resize(static_cast<size_t>(b.seq));
        log_probs.resize(static_cast<size_t>(b.seq));
        for (int64_t r = 0; r < b.rows; ++r) {
            const Row row(b, r);
            for (size_t i = 0; i < slopes.size(); ++i) {
                const double w = row.labels[i] < 0 ? 0.0 : row.weights.empty() ? 1.0 : double{row.weights[i]};
                slopes[i] = static_cast<float>(-w / weight);
            }
            products_->begin_row(number++, b.seq);
            NIBBLE_CHECK(forward_row(row, true));
            NIBBLE_CHECK(backward_row(row, slopes, log_probs));
            for (size_t i = 0; i < slopes.size(); ++i) {
                if (row.labels[i] < 0) continue;
                step.loss -= (row.weights.empty() ? 1.0 : double{row.weights[i]}) * double{log_probs[i]};
            }
            step.tokens += b.seq;
        }
    }
    step.loss /= weight;
    gradients_.end_step();
    products_->pause();
    step.gradient_norm = gradients_.norm();
    return step;
}

Result<TrainStep> Trainer::backward(std::span<const TrainBatch> batches, const RowObjective& objective) {
    TrainStep step;
    gradients_.begin_step();
    products_->begin_step(step_, steps_);
    std::vector<float> slopes, log_probs;
    int64_t number = 0;
    for (const TrainBatch& b : batches) {
        NIBBLE_CHECK(check(b, model_->config().vocab));
        log_probs.resize(static_cast<size_t>(b.seq));
        for (int64_t r = 0; r < b.rows; ++r) {
            const Row row(b, r);
            products_->begin_row(number, b.seq);
            NIBBLE_CHECK(forward_row(row, true));
            NIBBLE_CHECK(
                label_log_probs(model_->head(), inputs_.back().data(), row.labels, log_probs, model_->workspace()));
            slopes.assign(static_cast<size_t>(b.seq), 0.0f);
            double loss = 0;
            NIBBLE_CHECK(objective(number++, log_probs, slopes, loss));
            NIBBLE_CHECK(backward_row(row, slopes, log_probs));
            step.loss += loss;
            step.tokens += b.seq;
        }
    }
    gradients_.end_step();
    products_->pause();
    step.gradient_norm = gradients_.norm();
    return step;
}

Status Trainer::update(TrainStep& step, double learning_rate) {
    step.learning_rate = learning_rate;
    if (!std::isfinite(step.loss) || !std::isfinite(step.gradient_norm)) {
        if (!options_.skip_nonfinite)
            return fail("step {}: loss {}, gradient norm {}: not finite, nothing was changed", optimizer_.steps(),
                        step.loss, step.gradient_norm);
        step.skipped = true;
        return Ok{};
    }
    step.clip = clip_factor(step.gradient_norm, options_.optimizer.clip);
    optimizer_.update(*parameters_, gradients_, learning_rate, step.clip, pool_);
    products_->end_step();
    ++step_;
    return renew();
}

Result<TrainStep> Trainer::step(std::span<const TrainBatch> batches, double learning_rate) {
    NIBBLE_TRY(TrainStep step, backward(batches));
    NIBBLE_CHECK(update(step, learning_rate));
    return step;
}

Result<TrainStep> Trainer::step(std::span<const TrainBatch> batches, const RowObjective& objective,
                                double learning_rate) {
    NIBBLE_TRY(TrainStep step, backward(batches, objective));
    NIBBLE_CHECK(update(step, learning_rate));
    return step;
}

Status Trainer::log_probs(const TrainBatch& batch, std::span<float> out) {
    NIBBLE_CHECK(check(batch, model_->config().vocab));
    if (std::ssize(out) != batch.size()) return fail("{} log-probabilities of {} tokens", out.size(), batch.size());
    for (int64_t r = 0; r < batch.rows; ++r) {
        const Row row(batch, r);
        NIBBLE_CHECK(forward_row(row, false));
        NIBBLE_CHECK(label_log_probs(model_->head(), inputs_[0].data(), row.labels,
                                     out.subspan(static_cast<size_t>(r * batch.seq), static_cast<size_t>(batch.seq)),
                                     model_->workspace()));
    }
    return Ok{};
}

Result<double> Trainer::evaluate(std::span<const TrainBatch> batches) {
    double sum = 0, weight = 0;
    std::vector<float> values;
    for (const TrainBatch& b : batches) {
        values.resize(static_cast<size_t>(b.size()));
        NIBBLE_CHECK(log_probs(b, values));
        for (size_t i = 0; i < values.size(); ++i) {
            if (b.labels[i] < 0) continue;
            const double w = b.weights.empty() ? 1.0 : double{b.weights[i]};
            sum -= w * double{values[i]};
            weight += w;
        }
    }
    if (!(weight > 0)) return fail("no label has a weight above 0");
    return sum / weight;
}

}  // namespace nibble
