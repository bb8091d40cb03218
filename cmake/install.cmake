# Files that `cmake --install` installs, and the Debian packages built from them (`make install`, `make deb`).
#   program      bin/nibble, shell completion, the manual page
#   development  one static library of all folders but cli, the public headers, nibbleConfig.cmake: find_package(nibble), nibble::nibble
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

# All folders but cli, which only the program uses.
set(NIBBLE_LIBRARY_FOLDERS base formats io http page text tensor architecture grammar parallel kernels checkpoint chat model data quant train run engine eval rl server jobs)
set(objects "")
foreach(folder ${NIBBLE_LIBRARY_FOLDERS})
  get_target_property(type nibble_${folder} TYPE)
  if(NOT type STREQUAL "INTERFACE_LIBRARY")
    list(APPEND objects $<TARGET_OBJECTS:nibble_${folder}>)
  endif()
endforeach()
# Target names and file names differ: the program's target is `nibble` already.
add_library(nibble_library STATIC EXCLUDE_FROM_ALL ${objects} ${NIBBLE_BACKEND_OBJECTS})
set_target_properties(nibble_library PROPERTIES OUTPUT_NAME nibble EXPORT_NAME nibble LINKER_LANGUAGE CXX
  ARCHIVE_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/lib)
target_compile_features(nibble_library PUBLIC cxx_std_20)
target_include_directories(nibble_library INTERFACE $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
target_compile_definitions(nibble_library INTERFACE $<INSTALL_INTERFACE:NIBBLE_VERSION="${PROJECT_VERSION}">)
target_link_libraries(nibble_library INTERFACE
  $<INSTALL_INTERFACE:fmt::fmt> $<INSTALL_INTERFACE:nlohmann_json::nlohmann_json> $<INSTALL_INTERFACE:Threads::Threads>
  $<INSTALL_INTERFACE:yaml-cpp> $<INSTALL_INTERFACE:${CMAKE_DL_LIBS}> $<INSTALL_INTERFACE:Boost::headers>
  $<INSTALL_INTERFACE:xxhash> $<INSTALL_INTERFACE:pcre2-8> $<INSTALL_INTERFACE:utf8proc> $<INSTALL_INTERFACE:z> $<INSTALL_INTERFACE:md>)
if(NIBBLE_CUDA)
  target_link_libraries(nibble_library INTERFACE $<INSTALL_INTERFACE:CUDA::cudart_static> $<INSTALL_INTERFACE:dl>)
endif()

# Completion and the manual page come from the program itself.
set(documents ${CMAKE_BINARY_DIR}/documents)
set(outputs "")
foreach(document bash:nibble.bash zsh:_nibble fish:nibble.fish man:nibble.1)
  string(REPLACE ":" ";" parts ${document})
  list(GET parts 0 kind)
  list(GET parts 1 file)
  add_custom_command(OUTPUT ${documents}/${file}
    COMMAND ${CMAKE_COMMAND} -E make_directory ${documents}
    COMMAND nibble completion ${kind} > ${documents}/${file}
    DEPENDS nibble VERBATIM)
  list(APPEND outputs ${documents}/${file})
endforeach()
add_custom_target(nibble_documents DEPENDS ${outputs})

install(TARGETS nibble RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT program)
install(FILES ${documents}/nibble.bash DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions RENAME nibble COMPONENT program)
install(FILES ${documents}/_nibble DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/vendor-completions COMPONENT program)
install(FILES ${documents}/nibble.fish DESTINATION ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d COMPONENT program)
install(FILES ${documents}/nibble.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1 COMPONENT program)
install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR} RENAME copyright COMPONENT program)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/nibble)
install(TARGETS nibble_library EXPORT nibble ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT development)
install(EXPORT nibble NAMESPACE nibble:: FILE nibbleTargets.cmake DESTINATION ${package_dir} COMPONENT development)
# Public headers. Two of them are headers of base/ under another name.
file(GLOB headers CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/include/nibble/*.h)
list(FILTER headers EXCLUDE REGEX "/(error|hooks)\\.h$")
set(header_dir ${CMAKE_INSTALL_INCLUDEDIR}/nibble)
install(FILES ${headers} DESTINATION ${header_dir} COMPONENT development)
install(FILES nibble/base/error.h DESTINATION ${header_dir} RENAME error.h COMPONENT development)
install(FILES nibble/base/progress.h DESTINATION ${header_dir} RENAME hooks.h COMPONENT development)
configure_package_config_file(cmake/nibbleConfig.cmake.in ${CMAKE_BINARY_DIR}/nibbleConfig.cmake INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(${CMAKE_BINARY_DIR}/nibbleConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/nibbleConfig.cmake ${CMAKE_BINARY_DIR}/nibbleConfigVersion.cmake
  DESTINATION ${package_dir} COMPONENT development)

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME nibble)
set(CPACK_PACKAGE_VENDOR nibble)
set(CPACK_PACKAGE_CONTACT "nibble maintainers <maintainers@nibble.invalid>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "large language models from BF16 to four bits, verified")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_COMPONENTS_ALL program development)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)  # dpkg-shlibdeps reads the libraries' packages off the program
set(CPACK_DEBIAN_PROGRAM_PACKAGE_NAME nibble)
set(CPACK_DEBIAN_PROGRAM_PACKAGE_RECOMMENDS "coinor-libcbc3")  # nibble search
set(CPACK_DEBIAN_PROGRAM_PACKAGE_SUGGESTS "bubblewrap, python3")  # nibble rl with data.reward: code
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_NAME nibble-dev)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_SHLIBDEPS OFF)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_DEPENDS
  "libfmt-dev, nlohmann-json3-dev, libyaml-cpp-dev, libxxhash-dev, libpcre2-dev, libutf8proc-dev, zlib1g-dev, libmd-dev, libboost-dev")
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_RECOMMENDS "coinor-libcbc3")
include(CPack)
