# nibble_commit(TARGET): before TARGET is built, generated/cli/commit.h is brought up to date; it is written only when it changes.
#   -DNIBBLE_COMMIT=...   for builds outside a git checkout (packages)
set(NIBBLE_COMMIT "" CACHE STRING "The commit that `nibble --version` names; empty: asked of git")
function(nibble_commit target)
  add_custom_target(nibble_commit
    COMMAND ${CMAKE_COMMAND} -DROOT=${CMAKE_SOURCE_DIR} -DCOMMIT=${NIBBLE_COMMIT} -DOUTPUT=${CMAKE_BINARY_DIR}/generated/cli/commit.h
            -P ${CMAKE_SOURCE_DIR}/cmake/write_commit.cmake
    BYPRODUCTS ${CMAKE_BINARY_DIR}/generated/cli/commit.h
    VERBATIM)
  add_dependencies(${target} nibble_commit)
  if(NOT TARGET embedded)
    add_custom_target(embedded)
  endif()
  add_dependencies(embedded nibble_commit)
  target_include_directories(${target} PRIVATE ${CMAKE_BINARY_DIR}/generated)
  # A commit changes this header: one small file is compiled again, not the five others of its unity file.
  if(NIBBLE_CUDA)
    string(REGEX REPLACE "-real|-virtual" "" targets "${CMAKE_CUDA_ARCHITECTURES}")
    string(REPLACE ";" ", sm_" targets "sm_${targets}")
    set_source_files_properties(${CMAKE_SOURCE_DIR}/nibble/cli/version.cpp PROPERTIES COMPILE_DEFINITIONS NIBBLE_CUDA_TARGETS="${targets}")
  endif()
  set_source_files_properties(${CMAKE_SOURCE_DIR}/nibble/cli/version.cpp PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
endfunction()
