# Installs the build in `build`, then configures, builds and runs the project beside this file against it.
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
