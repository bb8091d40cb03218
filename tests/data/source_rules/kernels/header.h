#include "kernels/ref/quantize_ref.h"
