# Installs the library, its headers, the command line, and what find_package(ebb) needs.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/ebb)
install(TARGETS ebb EXPORT ebbTargets)
install(TARGETS ebb_cli COMPONENT program)
if(TARGET ebb_mpi)
  install(TARGETS ebb_mpi LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}/ebb COMPONENT program)
endif()
install(DIRECTORY ${CMAKE_SOURCE_DIR}/include/ebb TYPE INCLUDE FILES_MATCHING PATTERN "*.h")
install(EXPORT ebbTargets NAMESPACE ebb:: DESTINATION ${package_dir})

configure_package_config_file(${CMAKE_SOURCE_DIR}/cmake/ebbConfig.cmake.in ${CMAKE_BINARY_DIR}/ebbConfig.cmake
  INSTALL_DESTINATION ${package_dir} NO_SET_AND_CHECK_MACRO NO_CHECK_REQUIRED_COMPONENTS_MACRO)
# Before 1.0 a new minor version may change the interface.
write_basic_package_version_file(${CMAKE_BINARY_DIR}/ebbConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/ebbConfig.cmake ${CMAKE_BINARY_DIR}/ebbConfigVersion.cmake
              ${CMAKE_SOURCE_DIR}/cmake/FindOneDNN.cmake ${CMAKE_SOURCE_DIR}/cmake/FindOpenBLASOpenMP.cmake
              ${CMAKE_SOURCE_DIR}/cmake/FindLiburing.cmake
        DESTINATION ${package_dir})
