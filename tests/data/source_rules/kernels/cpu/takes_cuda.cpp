#include "kernels/ref/matmul_ref.h"
#include "kernels/cuda/common/ptx.cuh"
