#include "kernels/cpu/rows.h"
#include "kernels/matmul.h"
