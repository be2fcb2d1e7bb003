# CUDA is found, never required: EBB_CUDA says whether to look for it and whether it must be there. cuda_sources
# is what the library has of CUDA: kernels (src/**/*_cuda.cu) and their host code (src/**/*_cuda.cpp and all of
# src/core/cuda), or the one file that stands in for them. Comes before the library's target, which takes its CUDA
# settings from the language when it is made.
set(ebb_has_cuda FALSE)
set(cuda_sources src/core/cuda/absent.cpp src/core/cuda/rank_link_absent.cpp)
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

# Convolutions are cuDNN's; its headers do not come with the toolkit.
find_path(CUDNN_INCLUDE cudnn.h HINTS ${CMAKE_CUDA_COMPILER}/../../include ENV CUDNN_PATH PATH_SUFFIXES include)
if(NOT CUDNN_INCLUDE)
  if(EBB_CUDA STREQUAL "ON")
    message(FATAL_ERROR "EBB_CUDA is ON, but cudnn.h was not found; install cuDNN 9's headers or set CUDNN_INCLUDE")
  endif()
  message(STATUS "CUDA: not used, as cuDNN's headers were not found")
  return()
endif()

# One processor generation in machine code, and its PTX for newer ones.
if(NOT CMAKE_CUDA_ARCHITECTURES)
  set(CMAKE_CUDA_ARCHITECTURES 90 CACHE STRING "GPUs to compile for; 90 is Hopper (H100, H200)")
endif()
enable_language(CUDA)
set(CMAKE_CUDA_STANDARD 20)
set(CMAKE_CUDA_STANDARD_REQUIRED ON)
if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # CMake 3.25 does not know that nvcc 12 has C++20
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
endif()
find_package(CUDAToolkit REQUIRED)
message(STATUS "CUDA: found ${CUDAToolkit_VERSION}")
set(ebb_has_cuda TRUE)
file(GLOB_RECURSE cuda_sources CONFIGURE_DEPENDS src/*_cuda.cu src/*_cuda.cpp src/core/cuda/*.cpp)
list(FILTER cuda_sources EXCLUDE REGEX "_test\\.cpp$|/absent\\.cpp$")
# NCCL connects the GPUs of several ranks. Its header, too, does not come with the toolkit; without it, ranks run on the
# CPU alone.
find_path(NCCL_INCLUDE nccl.h HINTS ${CMAKE_CUDA_COMPILER}/../../include ENV NCCL_PATH PATH_SUFFIXES include)
if(NCCL_INCLUDE)
  list(FILTER cuda_sources EXCLUDE REGEX "/rank_link_absent\\.cpp$")
else()
  message(STATUS "NCCL: not found")
  list(FILTER cuda_sources EXCLUDE REGEX "/core/cuda/(rank_link|nccl)\\.cpp$")
endif()

# Several kernels compute the same losses and must agree to the bit: the compiler may not join a product and a sum in
# one of them and not in another.
set_source_files_properties(src/ops/linear_cross_entropy/linear_cross_entropy_cuda.cu
  src/ops/linear_cross_entropy/one_walk_cuda.cu PROPERTIES COMPILE_OPTIONS -fmad=false)

# Device code that NVRTC compiles too, as a string in the library.
set(device_headers cuda/group.cuh cuda/strided.cuh reduce/fold.cuh)
list(TRANSFORM device_headers PREPEND ${CMAKE_SOURCE_DIR}/src/ops/)
set(device_text ${CMAKE_BINARY_DIR}/generated/fold_text.cpp)
add_custom_command(OUTPUT ${device_text}
  COMMAND ${CMAKE_COMMAND} -D "headers=${device_headers}" -D "output=${device_text}"
          -P ${CMAKE_SOURCE_DIR}/cmake/join_device_text.cmake
  DEPENDS ${device_headers} ${CMAKE_SOURCE_DIR}/cmake/join_device_text.cmake
  COMMENT "Joining device headers" VERBATIM)
list(APPEND cuda_sources ${device_text})

# Kernels on Hopper's own instructions (src/**/*_wgmma_cuda.cu) are compiled for 90a, whatever else is: built where
# the GPUs to compile for include 90 and the toolkit can, and left out elsewhere.
set(wgmma_sources ${cuda_sources})
list(FILTER wgmma_sources INCLUDE REGEX "_wgmma_cuda\\.cu$")
list(FILTER cuda_sources EXCLUDE REGEX "_wgmma_cuda\\.cu$")
set(ebb_has_wgmma FALSE)
if(CUDAToolkit_VERSION VERSION_GREATER_EQUAL 12.5 AND CMAKE_CUDA_ARCHITECTURES MATCHES "(^|;)90a?(-|;|$)|all|native")
  set(ebb_has_wgmma TRUE)
endif()
