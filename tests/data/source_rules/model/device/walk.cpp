#include "kernels/moe_cuda.h"
#include "model/device/walk.h"
