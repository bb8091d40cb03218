// The batches of a training run, from token shards, a text or random tokens.
#pragma once

#include "data/batch_source.h"
#include "train/train_config.h"

#include <memory>
#include <string>

namespace nibble {

struct DataSources {
    std::unique_ptr<BatchSource> train;
    std::unique_ptr<BatchSource> validation;  // null: there is none
    std::string hash;                         // of the content: part of a run's identity
};

// The sources that the keys `data` of the config name. Errors: keys that exclude each other; see open_data_folder().
Result<DataSources> open_train_data(const TrainConfig& config, int64_t vocab);

// config.data.folder's training split, shuffled by config.seed; for validation config.data.validation's training split
// where it is given, else the folder's own validation split, both in order. Errors: a folder that is none (says which
// command makes one), ids beyond `vocab`, fewer tokens than a row.
Result<DataSources> open_data_folder(const TrainConfig& config, int64_t vocab);

}  // namespace nibble
