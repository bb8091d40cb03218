// A model on the CPU that several ranks run together (model/cpu/rank_share.h). Rank 0 has DividedModels, which are used
// like any other models. The other ranks follow() it: they load the models that rank 0 loads, and repeat its steps.
#pragma once

#include "model/cpu/model.h"
#include "model/step_record.h"

#include <functional>
#include <mutex>
#include <optional>
#include <thread>

namespace nibble {

// Why ranks that are threads could not load a model: rank 0 reports it, because they print nothing.
class LoadErrors {
public:
    void set(int rank, Error error);
    std::optional<Error> first() const;  // names the rank

private:
    mutable std::mutex mutex_;
    std::optional<Error> first_;
};

// The connection of rank 0 to the other ranks.
class RankTeam {
public:
    // `followers`: threads of this process that are the other ranks. `errors`: those of the threads; may be null.
    explicit RankTeam(std::unique_ptr<Communicator> ranks, std::vector<std::thread> followers = {},
                      std::shared_ptr<const LoadErrors> errors = nullptr);
    // Ends follow() on the other ranks, and waits for those of this process.
    ~RankTeam();
    RankTeam(const RankTeam&) = delete;
    RankTeam& operator=(const RankTeam&) = delete;

    Communicator& ranks() const { return *ranks_; }
    // Numbers and sends a record.
    Status send(StepRecord record);
    int32_t next_model() { return next_model_++; }
    std::optional<Error> load_error() const { return errors_ ? errors_->first() : std::nullopt; }

private:
    std::unique_ptr<Communicator> ranks_;
    std::vector<std::thread> followers_;
    std::shared_ptr<const LoadErrors> errors_;
    int64_t number_ = 0;
    int32_t next_model_ = 0;
};

class DividedModel : public LanguageModel {
public:
    // Loads a model on all ranks. `text`: what the other ranks load with it (ShareLoader). Error: the model cannot be
    // divided, or another rank could not load it.
    static Result<std::unique_ptr<DividedModel>> load(std::shared_ptr<RankTeam> team, const std::string& text,
                                                      std::shared_ptr<const Checkpoint> checkpoint,
                                                      const ModelOptions& options, ThreadPool& pool);
    ~DividedModel() override;

    const ModelConfig& config() const override { return model_.config(); }
    Result<std::unique_ptr<KvPool>> make_pool(int64_t tokens, int64_t sequences) const override;
    std::vector<StateLayout> states() const override { return model_.states(); }
    // Ranks of one machine share its memory.
    Result<int64_t> free_bytes(int64_t rows, int64_t wanted) const override;
    Status forward(const Batch& batch, std::span<float> logits, Observer* observer = nullptr) const override;
    Status evaluate(const Batch& batch, std::span<float> logits) const override;
    bool predicts() const override { return model_.predicts(); }
    Status predict(const Batch& batch, std::span<const int32_t> rows, bool again,
                   std::span<const TokenRequest> requests, std::span<ChosenToken> chosen) const override;
    Workspace& workspace() const override { return model_.workspace(); }
    std::string kernels() const override { return model_.kernels(); }
    std::string note() const override { return model_.note(); }

private:
    class Recorder;
    class PoolMemory;
    DividedModel(std::shared_ptr<RankTeam> team, int32_t number, Model model);
    // Sends a record of this model. Adds the batch's rows; with `reserves`, their pages are reserved before.
    Status send(StepRecord record, const Batch& batch, bool reserves) const;
    Status finished(Status step) const;

    std::shared_ptr<RankTeam> team_;
    int32_t number_;
    Model model_;
    std::shared_ptr<Recorder> recorder_;  // pools may outlive the model
};

// Loads the share of this rank of the model that `text` states; sets ModelOptions::ranks.
using ShareLoader = std::function<Result<Model>(const std::string& text)>;

// Does what rank 0 decides, until it leaves. Errors: a rank has ended, or this one failed where rank 0 did not.
Status follow(Communicator& ranks, const ShareLoader& load);

}  // namespace nibble
