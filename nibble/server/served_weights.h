// Replaces the weights of a served model while it serves, and frees its memory for other work: what a trainer needs
// that uses the server for rollouts.
#pragma once

#include "base/mapped_file.h"
#include "checkpoint/new_weights.h"
#include "engine/engine.h"
#include "model/cpu/model.h"

#include <atomic>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

namespace nibble {

struct WeightUpdate {
    std::string recipe;   // rules that quantize the new values; empty: those with which the model was quantized
    std::string version;  // a name of the new weights, see version(); empty: a number that is counted up
    Unfinished unfinished = Unfinished::keep;  // answers that have begun
    bool partial = true;                       // false: every tensor of the model must be replaced
};

// Reads "abort", "wait" or "keep".
Result<Unfinished> parse_unfinished(std::string_view word);
// Reads new values from the bytes of a safetensors file with the model's names. Errors: another dtype than F32, BF16
// and F16; those of NewWeights::set().
Status add_safetensors(NewWeights& weights, Bytes file);
// Reads new values from a checkpoint on disk. Errors: a quantized tensor; those of NewWeights::set().
Status add_checkpoint(NewWeights& weights, const std::filesystem::path& path);

// All functions may be called from any thread; they wait for each other, except version(), asleep() and paused().
class ServedWeights {
public:
    // Engine and pool must outlive the result. model: null: a model on a GPU, whose weights cannot be replaced.
    ServedWeights(Engine& engine, std::shared_ptr<Model> model, std::shared_ptr<const Checkpoint> checkpoint,
                  ThreadPool& pool)
        : engine_(&engine), model_(std::move(model)), weights_(std::move(checkpoint)), pool_(&pool) {}

    // Returns the current values, for commit() with new ones.
    NewWeights begin() const;
    // Quantizes the new values and lets the engine continue with them. Answers that begin later use the new weights
    // alone. After an error the old weights stay. Errors: those of requantize(); a missing tensor, unless `partial`.
    Status commit(const WeightUpdate& how, std::shared_ptr<const NewWeights> weights);
    // The same with the tensors of a checkpoint. One that is quantized replaces the model's as it is.
    Status load(const WeightUpdate& how, const std::filesystem::path& path);
    std::string version() const {
        const std::lock_guard lock(version_mutex_);
        return version_;
    }

    // Stops the engine between two steps until resume() or wake().
    Status pause(Unfinished unfinished);
    Status resume();
    Status forget_prefixes();
    // Stops the engine, ends unfinished answers, and frees the memory of the cache; level 2: also that of the packed
    // weights. Error: another level than 1 or 2.
    Status sleep(int level, Unfinished unfinished);
    // weights: reads the weights again if sleep() freed them. cache: the engine continues. Error: the engine is to
    // continue without weights.
    Status wake(bool weights, bool cache);
    bool asleep() const { return asleep_; }
    bool paused() const { return engine_->paused(); }

private:
    Status check_replaceable() const;
    Status replace(const WeightUpdate& how, std::shared_ptr<const NewWeights> weights);
    Status install(const WeightUpdate& how, std::shared_ptr<const Checkpoint> weights);
    Status while_paused(Unfinished unfinished, const std::function<Status()>& work);

    Engine* engine_;
    std::shared_ptr<Model> model_;
    NewWeights weights_;  // the current values
    ThreadPool* pool_;
    std::shared_ptr<const Checkpoint> running_;  // the checkpoint that the model last read; null: the first one
    mutable std::mutex mutex_, version_mutex_;
    std::atomic<bool> asleep_ = false;
    bool dropped_ = false;
    int64_t updates_ = 0;
    std::string version_ = "default";
};

}  // namespace nibble
