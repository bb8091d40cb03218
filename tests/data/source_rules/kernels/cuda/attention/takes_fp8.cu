#include "kernels/cuda/primitives/ptx.cuh"
#include "kernels/cuda/elementwise/elementwise_launch.h"
#include "kernels/cuda/matmul/fp8/fp8_ring.cuh"
#include <cuda_runtime.h>
