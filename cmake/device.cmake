# nibble_device(): GPU code, and the boundary between it and the rest of the program. Call it after all nibble_folder().
#   nibble_device    GPU code that runs on the host: the folders device/ of model, train and quant, and gpu_bench/. Without CUDA only
#                    test_device compiles it, over a GPU made of host memory (tests/device)
#   nibble_cuda      tensor/cuda/ and kernels/cuda/ (with NIBBLE_CUDA)
#   nibble_backend   what every program links that may open a device: nibble_device and nibble_cuda; without CUDA nibble/no_device.cpp,
#                    where each function of the boundary returns an error
# Objects, not archives: folders below call the boundary and GPU code calls the folders, so no order of archives would do.
function(nibble_device)
  add_library(nibble_device INTERFACE)
  foreach(part model/device train/device quant/device gpu_bench)
    string(REPLACE "/" "_" name nibble_${part})
    file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/nibble/${part}/*.cpp)
    add_library(${name} OBJECT ${sources})
    target_link_libraries(${name} PRIVATE nibble_quant nibble_train)
    nibble_target(${name})
    nibble_position_independent(${name})
    if(NOT NIBBLE_CUDA)
      set_target_properties(${name} PROPERTIES EXCLUDE_FROM_ALL ON)
      target_compile_options(${name} PRIVATE $<$<CONFIG:Release>:-O1>)  # code of a test program
    endif()
    list(APPEND objects $<TARGET_OBJECTS:${name}>)
  endforeach()
  target_sources(nibble_device INTERFACE ${objects})
  target_link_libraries(nibble_device INTERFACE nibble_quant nibble_train)

  add_library(nibble_backend INTERFACE)
  if(NIBBLE_CUDA)
    file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/nibble/tensor/cuda/*.cpp
      ${CMAKE_SOURCE_DIR}/nibble/kernels/cuda/*.cpp ${CMAKE_SOURCE_DIR}/nibble/kernels/cuda/*.cu)
    add_library(nibble_cuda STATIC ${sources})
    target_link_libraries(nibble_cuda PUBLIC nibble_kernels ${NIBBLE_CUDA_RUNTIME})
    set_target_properties(nibble_cuda PROPERTIES ARCHIVE_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/lib)
    nibble_position_independent(nibble_cuda)
    target_link_libraries(nibble_backend INTERFACE nibble_device nibble_cuda)
    list(APPEND objects $<TARGET_OBJECTS:nibble_cuda>)
  else()
    add_library(nibble_no_device OBJECT ${CMAKE_SOURCE_DIR}/nibble/no_device.cpp)
    target_include_directories(nibble_no_device PRIVATE ${CMAKE_SOURCE_DIR}/nibble)
    target_link_libraries(nibble_no_device PRIVATE nibble_base)
    nibble_precompile(nibble_no_device nibble_base)
    nibble_position_independent(nibble_no_device)
    set(objects $<TARGET_OBJECTS:nibble_no_device>)
    target_sources(nibble_backend INTERFACE ${objects})
  endif()
  set(NIBBLE_BACKEND_OBJECTS ${objects} PARENT_SCOPE)  # for the installed library
endfunction()
