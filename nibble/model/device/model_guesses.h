// What DeviceModel keeps for its guesses between passes (model_predict.cpp).
#pragma once

#include "model/device/model.h"

namespace nibble {

struct DeviceModel::Guesses {
    using GraphKey =
        std::tuple<int64_t, int64_t, int64_t, const std::byte*, const std::byte*, const float*, const std::byte*, bool>;

    DeviceStates of_model, of_guess;  // of the last step, behind the last norm; what the last pass hands on

    DeviceBatch batch;
    DeviceUpload lists;  // of rows of hidden states, and of pairs (DevicePredictor::Input)
    int64_t rows = 0, pairs = 0;
    std::optional<Landing> landing;
    std::map<GraphKey, Graph> graphs;
    int64_t graphs_moves = 0;
};

}  // namespace nibble
