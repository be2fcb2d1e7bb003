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

# The manual page and the completion of shells are made by the program itself, so that they tell its own options.
set(made_by_program ${CMAKE_BINARY_DIR}/made_by_program)
install(CODE "
  file(MAKE_DIRECTORY ${made_by_program})
  execute_process(COMMAND $<TARGET_FILE:ebb_cli> man OUTPUT_FILE ${made_by_program}/ebb.1 COMMAND_ERROR_IS_FATAL ANY)
  foreach(shell bash zsh fish)
    execute_process(COMMAND $<TARGET_FILE:ebb_cli> completion \${shell} OUTPUT_FILE ${made_by_program}/completion.\${shell}
                    COMMAND_ERROR_IS_FATAL ANY)
  endforeach()" COMPONENT program)
install(FILES ${made_by_program}/ebb.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1 COMPONENT program)
install(FILES ${made_by_program}/completion.bash RENAME ebb DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions COMPONENT program)
install(FILES ${made_by_program}/completion.zsh RENAME _ebb DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/site-functions COMPONENT program)
install(FILES ${made_by_program}/completion.fish RENAME ebb.fish DESTINATION ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d COMPONENT program)
