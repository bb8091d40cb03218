// The sources of a run whose data is a folder of token shards.
#pragma once

#include "data/batch_source.h"
#include "train/train_config.h"

#include <memory>
#include <string>

namespace nibble {

struct DataSources {
    std::unique_ptr<BatchSource> train;
    std::unique_ptr<BatchSource> validation;  // null: the folder has none
    std::string hash;                         // of what the folders hold: part of a run's identity
};

// config.data.folder's training split, shuffled by config.seed; for validation config.data.validation's training split
// where it is given, else the folder's own validation split, both in order. Errors: a folder that is none (says which
// command makes one), ids beyond `vocab`, fewer tokens than a row.
Result<DataSources> open_data_folder(const TrainConfig& config, int64_t vocab);

}  // namespace nibble
