// A language model on a GPU. The data flow is that of cpu/model.h with Compute::bf16, fused for the device: the
// residual stream is BF16, and one kernel adds a mixer's output to it and writes the next product's input. Embedding
// and head are in device memory. Either logits or the chosen tokens are copied to the host.
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

    // Loads the model. The pool must outlive it. Errors: no such device; too little free memory (found before anything
    // is read; the message has the needed and the free bytes); options, formats or shapes without kernels, with the
    // tensor's name.
    static Result<std::unique_ptr<DeviceModel>> load(std::shared_ptr<const Checkpoint> checkpoint,
                                                     const ModelOptions& options, const DeviceChoice& device,
                                                     ThreadPool& pool);

    // A model over weights that another object (a trainer) owns. The owner may overwrite them while no work of the
    // model is queued. Weights and pool must outlive the model.
    struct Weights {
        ModelConfig config;
        std::vector<DeviceLayer> layers;
        const std::byte* embedding = nullptr;  // BF16 [vocab, hidden], scaled
        const float* norm = nullptr;           // norm before the head
        DeviceLinear head;
        std::vector<std::pair<int64_t, int64_t>> w4a16;  // DeviceWeights::w4a16()
    };
    static Result<std::unique_ptr<DeviceModel>> over(Weights weights, const DeviceInfo& device, ThreadPool& pool);
    // The next pool uses this shared memory under the user name `rollouts`. Only one pool may exist at a time. A step
    // while another user holds the memory is an error. Call before make_pool().
    void keep_pages_in(std::shared_ptr<TimeSharedMemory> memory) { time_shared_ = std::move(memory); }
    static constexpr std::string_view rollouts = "rollouts";
    Status wait() const { return stream_.synchronize(); }  // waits for all queued work

    // Returns the head as DeviceWeights::linear() requires it: for a tied head, the matrix is that of the embedding.
    static Linear head_of(const ModelConfig& config, const Head& head);

    // Returns the kernels of a step of `tokens` tokens: 1 for one answer, n for n concurrent answers, or the length of
    // a prompt. Reads names and shapes only. Errors: those of load() except too little memory.
    static Result<KernelTable> kernel_table(std::shared_ptr<const Checkpoint> checkpoint, const ModelOptions& options,
                                            const DeviceChoice& device, int64_t tokens, ThreadPool& pool);
    Result<KernelTable> kernels(int64_t tokens) const;

    const ModelConfig& config() const override { return config_; }
    Result<std::unique_ptr<KvPool>> make_pool(int64_t tokens, int64_t sequences) const override;
    std::vector<StateLayout> states() const override;
    Result<int64_t> free_bytes(int64_t rows, int64_t wanted) const override;
    // Does not support observers. The sequences of a batch come from one pool; whole texts cannot be mixed with
    // sequences.
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

    // Writes the normalized last residual stream of whole texts to out [padded_rows(rows), hidden] (BF16, same device).
    // Waits. Used by trainers whose loss reads a second model: head() multiplies these rows.
    Status last_rows(const Batch& texts, std::byte* out) const;
    const DeviceLinear& head() const { return head_; }
    // Returns an upper bound of the device memory of last_rows(), in bytes, for `texts` texts with `rows` rows in total
    // whose K and V occupy pages for `page_tokens` tokens.
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
    Status make_parts(const ModelParts& parts, DeviceWeights& weights, const std::atomic<bool>* stop_requested);
    Status make_fused_decode();
    Status check_memory(int64_t weight_bytes) const;
    int64_t scratch_bytes(int64_t rows, int64_t wanted) const;
    Status reserve(int64_t rows, int64_t wanted) const;
    Result<std::vector<Sequence*>> sequences_of(const Batch& batch, std::vector<Sequence>& whole) const;
    struct DeviceLogits {
        const std::byte* data = nullptr;
        bool narrow = false;  // BF16, else FP32
    };
    // Page-locked host memory that a launched step writes: flags of NaNs, then tokens.
    struct Landing {
        PinnedBuffer memory;
        Event done;
        int64_t wanted = 0;
        DeviceLogits logits;
    };
    // Runs the forward pass of a batch without copying results to the host. `landing`: receives the tokens; null: no
    // tokens are chosen.
    Result<DeviceLogits> pass(const Batch& batch, std::span<const TokenRequest> requests,
                              std::span<const int64_t> carried, const Landing* landing,
                              std::vector<Sequence>& whole) const;
    Result<DeviceLogits> run(const Batch& batch, const Landing* landing) const;
    Result<DeviceLogits> queue(DeviceStep& step, int64_t wanted, const Landing* landing) const;
    int64_t under_way() const { return launched_ - collected_; }
    ChosenToken* tokens_in(const Landing& landing) const {
        return reinterpret_cast<ChosenToken*>(landing.memory.data() + flag_bytes());
    }
    // Queues embedding and all blocks. Returns the pending norm after the last block.
    Result<cuda::AddNorm> queue_blocks(std::byte* x, DeviceStep& step) const;
    // Returns the last norm of h [rows, hidden].
    cuda::AddNorm last_norm(int64_t rows, std::byte* h, const cuda::RowsOut& out) const;
    // Queues the head's product. The logits [rows, vocab] are rounded if the model scales or caps them.
    Status queue_logits(const cuda::RowsOut& from, int64_t rows, float* logits, DeviceStep& step) const;
    Status queue_choice(DeviceStep& step, float* logits, int64_t wanted, const Landing& landing) const;
    struct Deferred;  // see model_deferred.cpp
    // Multi-token prediction: see model_predict.cpp.
    struct DraftState;
    Status reserve_states(DeviceStates& states, int64_t rows) const;
    int64_t draft_bytes(int64_t rows, int64_t wanted) const;
    Status check_draft(const Batch& batch, std::span<const int32_t> rows, bool again, size_t requests,
                       size_t chosen) const;
    Status queue_draft(DeviceStep& step, int64_t wanted, bool again) const;
    int64_t flag_bytes() const;  // bytes of page-locked memory: one row number per block
    Status fetch(const Batch& batch, const DeviceLogits& from, std::span<float> logits) const;
    Status check_rows(const Batch& batch) const;

    DeviceInfo device_;
    Stream stream_;
    ModelConfig config_;
    std::unique_ptr<Workspace> host_;
    std::optional<DeviceArena> weights_;  // no value: another object owns the weights
    const std::byte* embedding_ = nullptr;
    std::vector<DeviceLayer> layers_;
    std::optional<DeviceFusedDecode> fused_decode_;  // single-token path through all layers
    const float* norm_ = nullptr;
    const float* norm_bias_ = nullptr;
    DeviceLinear head_;
    std::optional<DevicePredictor> predictor_;
    std::vector<std::pair<int64_t, int64_t>> w4a16_;  // rows and columns of the weights stored as records
    RoundedWeights rounded_;

    // Reused by later calls.
    mutable DeviceStepMemory memory_;
    mutable DeviceBatch batch_;
    std::shared_ptr<TimeSharedMemory> time_shared_;  // null: pools allocate their own memory
    mutable std::unique_ptr<KvPool> texts_;          // pages of whole texts
    mutable std::optional<PinnedBuffer> pinned_;
    mutable std::vector<Landing> landings_;  // empty, or two: for even and odd launches
    mutable int64_t launched_ = 0, collected_ = 0;
    mutable const float* chosen_from_ = nullptr;  // logits of the step that was collected last
    mutable int64_t chosen_rows_ = 0;
    mutable std::map<GraphKey, std::pair<Graph, DeviceLogits>> graphs_;
    mutable int64_t graphs_moves_ = 0;         // value of memory_.moves() for which graphs_ are valid
    std::unique_ptr<DraftState> draft_state_;  // null without a predictor
    mutable std::unique_ptr<Deferred> deferred_;
};

}  // namespace nibble
