#include "kernels/ref/matmul_ref.h"
#include "kernels/cuda/primitives/ptx.cuh"
