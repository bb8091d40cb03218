# nibble_embed(TARGET SYMBOL DIRECTORY): puts every file under DIRECTORY into the program, so that it stands alone.
# Generates SYMBOL_embedded.cpp, which defines
#   std::span<const nibble::EmbeddedFile> nibble::SYMBOL_embedded();      (declared in base/embedded.h's style by the user)
function(nibble_embed target symbol directory)
  file(GLOB_RECURSE files CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/${directory}/*)
  set(output ${CMAKE_BINARY_DIR}/generated/${symbol}_embedded.cpp)
  add_custom_command(
    OUTPUT ${output}
    COMMAND ${CMAKE_COMMAND} -DOUTPUT=${output} -DSYMBOL=${symbol} -DROOT=${CMAKE_SOURCE_DIR}/${directory}
            -P ${CMAKE_SOURCE_DIR}/cmake/embed_files.cmake
    DEPENDS ${files} ${CMAKE_SOURCE_DIR}/cmake/embed_files.cmake
    VERBATIM)
  add_custom_target(embed_${symbol} DEPENDS ${output})
  if(NOT TARGET embedded)
    add_custom_target(embedded)  # for tools that only read the sources (make tidy)
  endif()
  add_dependencies(embedded embed_${symbol})
  get_target_property(type ${target} TYPE)
  if(type STREQUAL "INTERFACE_LIBRARY")
    target_sources(${target} INTERFACE ${output})
  else()
    target_sources(${target} PRIVATE ${output})
  endif()
endfunction()
