// __global__ void gather_kernel(int x) {}
__global__ void scan_kernel() {}
