// State of DeviceModel's multi-token prediction that is kept between passes (model_predict.cpp).
#pragma once

#include "model/device/model.h"

namespace nibble {

struct DeviceModel::DraftState {
    using GraphKey =
        std::tuple<int64_t, int64_t, int64_t, const std::byte*, const std::byte*, const float*, const std::byte*, bool>;

    DeviceStates of_model, of_draft;  // hidden states of the last step after the last norm, and the outputs of the last
                                      // prediction pass

    DeviceBatch batch;
    DeviceUpload lists;  // row numbers of hidden states, and pairs (DevicePredictor::Input)
    int64_t rows = 0, pairs = 0;
    std::optional<Landing> landing;
    std::map<GraphKey, Graph> graphs;
    int64_t graphs_moves = 0;
};

}  // namespace nibble
