// Opens the batches of a training run: token shards, a text, or random tokens.
#pragma once

#include "data/batch_source.h"
#include "train/train_config.h"

#include <atomic>
#include <memory>
#include <string>

namespace nibble {

struct DataSources {
    std::unique_ptr<BatchSource> train;
    std::unique_ptr<BatchSource> validation;  // null: no validation data
    std::string hash;                         // hash of the content; part of the run's identity
};

// Opens the sources named by the config's `data` keys. Errors: keys that exclude each other; those of
// open_data_folder(). Once *stop is true (it may be null), tokenizing a text ends with an error of kind cancelled.
Result<DataSources> open_train_data(const TrainConfig& config, int64_t vocab, const std::atomic<bool>* stop);

// Opens the training split of config.data.folder, shuffled by config.seed. Validation reads, in order, the training
// split of config.data.validation if given, else the validation split of the folder. Errors: not a data folder (names
// the command that creates one), token ids >= `vocab`, fewer tokens than a row.
Result<DataSources> open_data_folder(const TrainConfig& config, int64_t vocab);

}  // namespace nibble
