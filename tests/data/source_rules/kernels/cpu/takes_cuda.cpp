#include "kernels/cuda/primitives/ptx.cuh"
#include "kernels/ref/matmul_ref.h"
