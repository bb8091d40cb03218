# nibble_precompile(TARGET [OF]): the target's files begin with a header that is read once. Reading <nlohmann/json.hpp>, <filesystem>
# and <ranges> again for every file is what a build pays twice for. OF is the target that makes it (itself: cmake/precompiled.h; tests add
# GoogleTest). Not for folders whose files are compiled for instruction sets of their own, and not in preset tidy: clang-tidy cannot
# read what GCC made.
function(nibble_precompile target)
  set(maker ${ARGN})
  if(maker)
    target_precompile_headers(${target} REUSE_FROM ${maker})
  else()
    target_precompile_headers(${target} PRIVATE "$<$<COMPILE_LANGUAGE:CXX>:${CMAKE_SOURCE_DIR}/cmake/precompiled.h>")
  endif()
endfunction()
