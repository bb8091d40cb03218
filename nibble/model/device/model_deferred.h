// What DeviceModel keeps for rows that are chosen from after their step was launched (model_deferred.cpp).
#pragma once

#include "model/device/model.h"

namespace nibble {

struct DeviceModel::Deferred {
    Stream stream;  // copies run beside the step
    Event arrived;
    DeviceUpload upload;
};

}  // namespace nibble
