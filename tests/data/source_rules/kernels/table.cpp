#include "kernels/cpu/rows.h"
#include "kernels/ref/quantize_ref.h"
