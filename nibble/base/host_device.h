// Marks code that is compiled for the host and, by nvcc, for the device too.
#pragma once

#ifdef __CUDACC__
#define NIBBLE_HD __host__ __device__
#else
#define NIBBLE_HD
#endif
