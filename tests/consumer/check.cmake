# Installs the build in `build`, then configures, builds and runs two projects against it: the one beside this file, and the
# starter project of docs/library.md, with the CMakeLists.txt that stands there.
file(REMOVE_RECURSE ${work})
set(prefix ${work}/prefix)
if(sanitize)
  set(sanitizer -DCMAKE_CXX_FLAGS=-fsanitize=${sanitize})  # a sanitized library needs a sanitized program
endif()
execute_process(COMMAND ${CMAKE_COMMAND} --install ${build} --prefix ${prefix}
                OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND ${CMAKE_COMMAND} -S ${CMAKE_CURRENT_LIST_DIR} -B ${work}/build -G ${generator}
                        -DCMAKE_CXX_COMPILER=${compiler} -DCMAKE_PREFIX_PATH=${prefix} ${sanitizer}
                COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND ${CMAKE_COMMAND} --build ${work}/build COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND ${work}/build/consumer OUTPUT_VARIABLE output COMMAND_ERROR_IS_FATAL ANY)
if(NOT output STREQUAL "12\n")
  message(FATAL_ERROR "the consumer must print 12, but printed \"${output}\"")
endif()
# The installed program runs without the build tree's library paths.
execute_process(COMMAND ${prefix}/bin/ebb --version OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)

set(root ${CMAKE_CURRENT_LIST_DIR}/../..)
file(READ ${root}/docs/library.md page)
if(NOT page MATCHES "```cmake\n(cmake_minimum_required[^`]*)```")
  message(FATAL_ERROR "docs/library.md has no CMakeLists.txt of a starter project")
endif()
file(WRITE ${work}/starter/CMakeLists.txt "${CMAKE_MATCH_1}")
file(COPY_FILE ${root}/examples/own_model.cpp ${work}/starter/main.cpp)
execute_process(COMMAND ${CMAKE_COMMAND} -S ${work}/starter -B ${work}/starter/build -G ${generator}
                        -DCMAKE_CXX_COMPILER=${compiler} -DCMAKE_PREFIX_PATH=${prefix} ${sanitizer}
                COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND ${CMAKE_COMMAND} --build ${work}/starter/build COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND ${work}/starter/build/starter OUTPUT_VARIABLE output COMMAND_ERROR_IS_FATAL ANY)
if(NOT output MATCHES "peak .*loss .* after 100 steps")
  message(FATAL_ERROR "the starter project printed \"${output}\"")
endif()
