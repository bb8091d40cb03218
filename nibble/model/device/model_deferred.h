// State of DeviceModel for rows whose tokens are chosen after their step was launched (model_deferred.cpp).
#pragma once

#include "model/device/model.h"

namespace nibble {

struct DeviceModel::Deferred {
    Stream stream;  // copies run concurrently with the step
    Event arrived;
    DeviceUpload upload;
};

}  // namespace nibble
