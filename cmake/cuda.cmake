# The CUDA backend. sm_90a is what is run and measured; the two Blackwell targets are only compiled.
set(CMAKE_CUDA_ARCHITECTURES "90a-real;100a-real;120a-real" CACHE STRING "GPU targets")
enable_language(CUDA)
find_package(CUDAToolkit 13.0 REQUIRED)

# CMake before 3.25.2 does not know that nvcc speaks C++20; the standard itself is CMAKE_CXX_STANDARD's.
if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
  set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
endif()
set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
set(NIBBLE_CUDA_RUNTIME CUDA::cudart_static)
if(CCACHE)
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${CCACHE})
endif()

# formats/ is constexpr code that runs on the device as it is (--expt-relaxed-constexpr covers std::bit_cast).
# -fmad=false: a product that is rounded on the CPU must be rounded on the GPU; kernels that want fused operations say fmaf.
add_compile_options("$<$<COMPILE_LANGUAGE:CUDA>:--expt-relaxed-constexpr;-fmad=false;-lineinfo;-Xcompiler=-Wall,-ffp-contract=off>")
