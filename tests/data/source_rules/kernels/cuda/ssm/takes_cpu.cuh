#include "kernels/cpu/rows.h"
