#include "server/served_weights.h"

#include "base/utf8.h"
#include "checkpoint/held_tensors.h"
#include "io/safetensors.h"
#include "model/cpu/widen.h"
#include "quant/requantize.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

namespace nibble {
namespace {

bool has_quantized(const Checkpoint& checkpoint) {
    return std::ranges::any_of(checkpoint.tensors(), &CheckpointTensor::quantized);
}

Status add_value(NewWeights& weights, const std::string& name, std::span<const int64_t> shape, MatrixView view) {
    std::vector<float> values(static_cast<size_t>(view.rows * view.cols));
    widen(view, values.data());
    return weights.set(name, shape, values);
}

Status add_all(NewWeights& weights, const Checkpoint& source) {
    for (size_t i = 0; i < source.tensors().size(); ++i) {
        const CheckpointTensor& t = source.tensors()[i];
        Matrix scratch;
        NIBBLE_TRY(const MatrixView view, source.read_plain(i, 0, t.rows(), scratch));
        NIBBLE_CHECK(add_value(weights, t.name, t.shape, view));
        source.done_with(i, 0, t.rows());
    }
    return Ok{};
}

}  // namespace

Result<Unfinished> parse_unfinished(std::string_view word) {
    if (word == "abort") return Unfinished::cancel;
    if (word == "wait") return Unfinished::finish;
    if (word == "keep") return Unfinished::keep;
    return fail(ErrorKind::usage, "mode '{}': choose abort, wait or keep", printable(word, 100));
}

Status add_safetensors(NewWeights& weights, Bytes file) {
    NIBBLE_TRY(const SafetensorsFile tensors, SafetensorsFile::parse(file).as(ErrorKind::usage));
    for (const TensorRecord& t : tensors.tensors()) {
        if (t.dtype != DType::f32 && t.dtype != DType::bf16 && t.dtype != DType::f16)
            return fail(ErrorKind::usage, "{}: has dtype {}; new values are F32, BF16 or F16", printable(t.name, 200),
                        dtype_name(t.dtype));
        const int64_t elements = static_cast<int64_t>(t.data.size()) / dtype_bytes(t.dtype);
        NIBBLE_CHECK(add_value(weights, t.name, t.shape, {t.dtype, 1, elements, t.data.data()}));
    }
    return Ok{};
}

Status add_checkpoint(NewWeights& weights, const std::filesystem::path& path) {
    NIBBLE_TRY(const auto source, Checkpoint::open(path).as(ErrorKind::checkpoint));
    if (has_quantized(*source))
        return fail(ErrorKind::usage, "{}: has quantized tensors, which replace all weights in one step",
                    path.string());
    return add_all(weights, *source).within(path.string());
}

Status ServedWeights::check_replaceable() const {
    if (model_) return Ok{};
    return fail(ErrorKind::device,
                "the weights of a model on a GPU or on several ranks cannot be replaced while it serves");
}

// Pauses the engine for `work`, unless it is paused already.
Status ServedWeights::while_paused(Unfinished unfinished, const std::function<Status()>& work) {
    const bool was_paused = engine_->paused();
    if (!was_paused) engine_->pause(unfinished);
    Status done = work();
    if (!was_paused) engine_->resume();
    return done;
}

Status ServedWeights::install(const WeightUpdate& how, std::shared_ptr<const Checkpoint> weights) {
    NIBBLE_CHECK(while_paused(how.unfinished, [&]() -> Status {
        NIBBLE_CHECK(model_->replace(weights));
        engine_->forget_prefixes();
        return Ok{};
    }));
    running_ = std::move(weights);
    dropped_ = false;
    ++updates_;
    const std::lock_guard lock(version_mutex_);
    version_ = how.version.empty() ? std::to_string(updates_) : how.version;
    return Ok{};
}

Status ServedWeights::replace(const WeightUpdate& how, std::shared_ptr<const NewWeights> weights) {
    if (!how.partial)
        for (size_t i = 0; i < weights->tensors().size(); ++i)
            if (!weights->given(i))
                return fail(ErrorKind::usage, "{}: is missing among the new weights", weights->tensors()[i].name);
    NIBBLE_TRY(auto quantized, requantize(weights, how.recipe, *pool_));
    NIBBLE_CHECK(install(how, std::move(quantized)));
    weights_ = *weights;
    return Ok{};
}

NewWeights ServedWeights::begin() const {
    const std::lock_guard lock(mutex_);
    NewWeights started = weights_;
    started.start_update();
    return started;
}

Status ServedWeights::commit(const WeightUpdate& how, std::shared_ptr<const NewWeights> weights) {
    const std::lock_guard lock(mutex_);
    NIBBLE_CHECK(check_replaceable());
    return replace(how, std::move(weights));
}

Status ServedWeights::load(const WeightUpdate& how, const std::filesystem::path& path) {
    const std::lock_guard lock(mutex_);
    NIBBLE_CHECK(check_replaceable());
    NIBBLE_TRY(std::shared_ptr<const Checkpoint> source, Checkpoint::open(path).as(ErrorKind::checkpoint));
    if (has_quantized(*source)) {
        // The files may change afterwards.
        for (size_t i = 0; i < source->tensors().size(); ++i) NIBBLE_CHECK(hold_tensor(*source, i));
        NIBBLE_CHECK(install(how, source).within(path.string()));
        weights_ = NewWeights(std::move(source));
        return Ok{};
    }
    const auto weights = std::make_shared<NewWeights>(weights_);
    weights->start_update();
    NIBBLE_CHECK(add_all(*weights, *source).within(path.string()));
    return replace(how, weights);
}

Status ServedWeights::pause(Unfinished unfinished) {
    const std::lock_guard lock(mutex_);
    engine_->pause(unfinished);
    return Ok{};
}

Status ServedWeights::resume() {
    const std::lock_guard lock(mutex_);
    if (dropped_) return fail(ErrorKind::usage, "the weights are not in memory: wake the model up first");
    asleep_ = false;
    engine_->resume();
    return Ok{};
}

Status ServedWeights::forget_prefixes() {
    const std::lock_guard lock(mutex_);
    return while_paused(Unfinished::keep, [&]() -> Status {
        engine_->forget_prefixes();
        return Ok{};
    });
}

Status ServedWeights::sleep(int level, Unfinished unfinished) {
    const std::lock_guard lock(mutex_);
    if (level != 1 && level != 2)
        return fail(ErrorKind::usage, "sleep level {}: 1 frees the cache, 2 also the weights", level);
    NIBBLE_CHECK(check_replaceable());
    engine_->pause(unfinished == Unfinished::keep ? Unfinished::cancel : unfinished);
    engine_->forget_pages();
    if (level == 2 && !dropped_) {
        model_->drop_weights();
        dropped_ = true;
    }
    asleep_ = true;
    return Ok{};
}

Status ServedWeights::wake(bool weights, bool cache) {
    const std::lock_guard lock(mutex_);
    if (weights && dropped_) {
        NIBBLE_CHECK(running_ ? model_->replace(running_) : model_->renew());
        dropped_ = false;
    }
    if (!cache) return Ok{};
    if (dropped_) return fail(ErrorKind::usage, "the weights are not in memory: wake up 'weights' first");
    asleep_ = false;
    engine_->resume();
    return Ok{};
}

}  // namespace nibble
