// A language model on a GPU: the data flow of model.h with Compute::bf16, fused for the device. The residual stream is
// BF16; one kernel adds a mixer's output to it and writes the next product's input. Embedding and head lie on the
// device; logits come back to the host, or the tokens that were chosen from them.
#pragma once

#include "model/cpu/model.h"
#include "model/device/batch.h"
#include "model/device/predictor.h"
#include "model/device/runner.h"
#include "model/device/step_memory.h"
#include "model/language_model.h"

#include <map>
#include <memory>
#include <optional>
#include <tuple>
#include <vector>

namespace nibble {

class DeviceModel : public LanguageModel {
public:
    ~DeviceModel() override;

    // The pool outlives the model. Errors: no such device; not enough free memory (says how much is needed and how much
    // is free, before anything is read); options, formats or shapes that have no kernels, with the tensor's name.
    static Result<std::unique_ptr<DeviceModel>> load(std::shared_ptr<const Checkpoint> checkpoint,
                                                     const ModelOptions& options, const DeviceChoice& device,
                                                     ThreadPool& pool);

    // A model over weights that somebody else holds and may write anew when nothing of the model is under way. Weights
    // and pool outlive it.
    struct Weights {
        ModelConfig config;
        std::vector<DeviceLayer> layers;
        const std::byte* embedding = nullptr;  // BF16 [vocab, hidden], scaled
        const float* norm = nullptr;           // of the head
        DeviceLinear head;
        std::vector<std::pair<int64_t, int64_t>> w4a16;  // DeviceWeights::w4a16()
    };
    static Result<std::unique_ptr<DeviceModel>> over(Weights weights, const DeviceInfo& device, ThreadPool& pool);
    // The next pool lies in this memory, as its user `rollouts`: one pool at a time, and a step is an error where the
    // turn is another's. Before make_pool().
    void keep_pages_in(std::shared_ptr<LentMemory> memory) { lent_ = std::move(memory); }
    static constexpr std::string_view rollouts = "rollouts";
    Status wait() const { return stream_.synchronize(); }  // for what was queued

    // The head as DeviceWeights::linear() takes it: its matrix is the embedding's where they are tied.
    static Linear head_of(const ModelConfig& config, const Head& head);

    // The kernels of a step of `tokens` tokens: of an answer (1), of as many sequences, or of a prompt. Nothing is read
    // but names and shapes. Errors as of load(), but for memory.
    static Result<KernelTable> kernel_table(std::shared_ptr<const Checkpoint> checkpoint, const ModelOptions& options,
                                            const DeviceChoice& device, int64_t tokens, ThreadPool& pool);
    Result<KernelTable> kernels(int64_t tokens) const;

    const ModelConfig& config() const override { return config_; }
    Result<std::unique_ptr<KvPool>> make_pool(int64_t tokens, int64_t sequences) const override;
    std::vector<StateLayout> states() const override;
    Result<int64_t> free_bytes(int64_t rows, int64_t wanted) const override;
    // No observers. The sequences of a batch come from one pool; whole texts are not mixed with sequences.
    Status forward(const Batch& batch, std::span<float> logits, Observer* observer = nullptr) const override;
    bool chooses() const override { return true; }
    Status choose(const Batch& batch, std::span<const TokenRequest> requests,
                  std::span<ChosenToken> chosen) const override;
    Status logits_of(int64_t wanted_row, std::span<float> logits) const override;
    bool overlaps() const override { return true; }
    Status launch(const Batch& batch, std::span<const TokenRequest> requests,
                  std::span<const int64_t> carried) const override;
    Status choose_deferred(std::span<const int64_t> rows, std::span<const TokenRequest> requests) const override;
    Status collect(std::span<ChosenToken> chosen) const override;
    bool predicts() const override { return predictor_.has_value(); }
    Status predict(const Batch& batch, std::span<const int32_t> rows, bool again,
                   std::span<const TokenRequest> requests, std::span<ChosenToken> chosen) const override;
    Workspace& workspace() const override { return *host_; }
    std::string kernels() const override { return device_.name; }
    std::string note() const override { return rounded_.text(); }

    // The last residual stream of whole texts, normalised, into out [rows, hidden] BF16 of the same device, room for
    // padded_rows(); head() multiplies it. Waits. For a trainer whose loss looks at another model.
    Status last_rows(const Batch& texts, std::byte* out) const;
    const DeviceLinear& head() const { return head_; }
    // Of device memory that last_rows() takes at most, for so many rows of so many texts with so many tokens in pages.
    int64_t rows_bytes(int64_t rows, int64_t page_tokens, int64_t texts) const;

    int64_t weight_bytes() const { return weights_ ? weights_->used() : 0; }

private:
    static constexpr int64_t landing_bytes = int64_t{1} << 20, pinned_bytes = int64_t{32} << 20;
    static constexpr size_t most_graphs = 128;
    using GraphKey =
        std::tuple<int64_t, int64_t, int64_t, const std::byte*, const std::byte*, const float*, const std::byte*, bool>;

    DeviceModel(DeviceInfo device, Stream stream, ModelConfig config);
    // A model whose parts are planned: sizes without memory.
    struct Outline {
        std::unique_ptr<DeviceModel> model;
        ModelParts parts;
        int64_t weight_bytes = 0;
    };
    static Result<Outline> open(const Checkpoint& checkpoint, const ModelOptions& options, const DeviceChoice& device,
                                ThreadPool& pool);
    Status make_parts(const ModelParts& parts, DeviceWeights& weights);
    Status make_product_chain();
    Status check_memory(int64_t weight_bytes) const;
    int64_t scratch_bytes(int64_t rows, int64_t wanted) const;
    Status reserve(int64_t rows, int64_t wanted) const;
    Result<std::vector<Sequence*>> sequences_of(const Batch& batch, std::vector<Sequence>& whole) const;
    struct DeviceLogits {
        const std::byte* data = nullptr;
        bool narrow = false;  // BF16, else FP32
    };
    // What a launched step leaves: flags of NaNs, then tokens, both of which the GPU writes.
    struct Landing {
        PinnedBuffer memory;
        Event done;
        int64_t wanted = 0;
        DeviceLogits logits;
    };
    // A batch through everything but the way back. `landing`: where tokens go; null: none are chosen.
    Result<DeviceLogits> pass(const Batch& batch, std::span<const TokenRequest> requests,
                              std::span<const int64_t> carried, const Landing* landing,
                              std::vector<Sequence>& whole) const;
    Result<DeviceLogits> run(const Batch& batch, const Landing* landing) const;
    Result<DeviceLogits> queue(DeviceStep& step, int64_t wanted, const Landing* landing) const;
    int64_t under_way() const { return launched_ - collected_; }
    ChosenToken* tokens_in(const Landing& landing) const {
        return reinterpret_cast<ChosenToken*>(landing.memory.data() + flag_bytes());
    }
    // Embedding and all blocks, and what is left for the norm behind them.
    Result<cuda::AddNorm> queue_blocks(std::byte* x, DeviceStep& step) const;
    Status queue_choice(DeviceStep& step, float* logits, int64_t wanted, const Landing& landing) const;
    struct Deferred;  // model_deferred.cpp
    // model_predict.cpp
    struct Guesses;
    Status reserve_states(DeviceStates& states, int64_t rows) const;
    int64_t guess_bytes(int64_t rows, int64_t wanted) const;
    Status check_guess(const Batch& batch, std::span<const int32_t> rows, bool again, size_t requests,
                       size_t chosen) const;
    Status queue_guess(DeviceStep& step, int64_t wanted, bool again) const;
    int64_t flag_bytes() const;  // of page-locked memory: a row number for every block
    Status fetch(const Batch& batch, const DeviceLogits& from, std::span<float> logits) const;
    Status check_rows(const Batch& batch) const;

    DeviceInfo device_;
    Stream stream_;
    ModelConfig config_;
    std::unique_ptr<Workspace> host_;
    std::optional<DeviceArena> weights_;  // none: somebody else's
    const std::byte* embedding_ = nullptr;
    std::vector<DeviceLayer> layers_;
    std::optional<DeviceProductChain> product_chain_;  // of the layers, for one token
    const float* norm_ = nullptr;
    DeviceLinear head_;
    std::optional<DevicePredictor> predictor_;
    std::vector<std::pair<int64_t, int64_t>> w4a16_;  // rows and columns of weights
    RoundedWeights rounded_;

    // Kept between calls.
    mutable DeviceStepMemory memory_;
    mutable DeviceBatch batch_;
    std::shared_ptr<LentMemory> lent_;       // null: pools have memory of their own
    mutable std::unique_ptr<KvPool> texts_;  // pages of whole texts
    mutable std::optional<PinnedBuffer> pinned_;
    mutable std::vector<Landing> landings_;  // two, or none yet: of even and of odd launches
    mutable int64_t launched_ = 0, collected_ = 0;
    mutable const float* chosen_from_ = nullptr;  // logits of the step that was collected last
    mutable int64_t chosen_rows_ = 0;
    mutable std::map<GraphKey, std::pair<Graph, DeviceLogits>> graphs_;
    mutable int64_t graphs_moves_ = 0;  // memory_.moves() that graphs_ is for
    std::unique_ptr<Guesses> guesses_;  // where there is a predictor
    mutable std::unique_ptr<Deferred> deferred_;
};

}  // namespace nibble
