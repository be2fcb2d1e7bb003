# CUDA is found, never required: EBB_CUDA says whether to look for it and whether it must be there. Where it is
# found, cuda_sources lists every src/**/*.cu. Comes before the library's target, which takes its CUDA settings
# from the language when it is made.
set(cuda_sources)
if(NOT EBB_CUDA MATCHES "^(AUTO|ON|OFF)$")
  message(FATAL_ERROR "EBB_CUDA must be AUTO, ON or OFF, but is \"${EBB_CUDA}\"")
endif()
if(EBB_CUDA STREQUAL "OFF")
  message(STATUS "CUDA: off")
  return()
endif()

include(CheckLanguage)
check_language(CUDA)
if(NOT CMAKE_CUDA_COMPILER)
  if(EBB_CUDA STREQUAL "ON")
    message(FATAL_ERROR "EBB_CUDA is ON, but no CUDA compiler was found; put nvcc on PATH or set CMAKE_CUDA_COMPILER")
  endif()
  message(STATUS "CUDA: not found")
  return()
endif()

enable_language(CUDA)
if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # CMake 3.25 does not know that nvcc 12 has C++20
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
endif()
find_package(CUDAToolkit REQUIRED)
message(STATUS "CUDA: found ${CUDAToolkit_VERSION}")
file(GLOB_RECURSE cuda_sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/*.cu)
