# How every target of the project is compiled: warnings are errors, and floating-point arithmetic keeps its
# order (no -ffast-math) so that the same program gives the same bits.
add_library(ebb_flags INTERFACE)
target_compile_options(ebb_flags INTERFACE
  -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wno-sign-conversion -Werror
  -fno-math-errno -fno-trapping-math -march=${EBB_MARCH})
if(CMAKE_BUILD_TYPE STREQUAL "Release")
  target_compile_options(ebb_flags INTERFACE -O3)
endif()
if(EBB_SANITIZE)
  target_compile_options(ebb_flags INTERFACE -fsanitize=${EBB_SANITIZE} -fno-omit-frame-pointer -g)
  target_link_options(ebb_flags INTERFACE -fsanitize=${EBB_SANITIZE})
endif()
