#include "kernels/moe_cuda.h"
#include "model/device/layerwise.h"
