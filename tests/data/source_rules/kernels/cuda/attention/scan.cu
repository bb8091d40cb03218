template <int Tokens>
__global__ void __launch_bounds__(128, 1)
    scan_kernel(int tokens) {}
__global__ void gather_kernel(int x) {}
