#include <cuda_runtime.h>
#include "tensor/cuda/call.h"
