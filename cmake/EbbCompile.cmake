# How every target of the project is compiled: warnings are errors, and floating-point arithmetic keeps its
# order (no -ffast-math) so that the same program gives the same bits.
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 12)
  message(FATAL_ERROR "ebb needs g++ 12 or later, but this is ${CMAKE_CXX_COMPILER_VERSION}")
endif()
if(NOT EBB_PARALLEL MATCHES "^(openmp|threads)$")
  message(FATAL_ERROR "EBB_PARALLEL must be openmp or threads, but is \"${EBB_PARALLEL}\"")
endif()

add_library(ebb_flags INTERFACE)
# In a batch of sources (ebb_unite) a local name may be one of another source's unnamed namespace, and a source that is
# included looks like a header to the warning about types with internal linkage.
set(shadow $<IF:$<BOOL:$<TARGET_PROPERTY:UNITY_BUILD>>,-Wshadow=local;-Wno-subobject-linkage,-Wshadow>)
target_compile_options(ebb_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:
  -Wall -Wextra -Wpedantic ${shadow} -Wconversion -Wno-sign-conversion -Werror
  -fno-math-errno -fno-trapping-math -march=${EBB_MARCH}>)
# Time is spent in kernels and in the planner. What only calls them gains nothing from optimisation but a longer build.
# Under sanitizers, whose checks take the optimiser long, tokenizers and rewrites of graphs are left out too.
set(ebb_caller_rooms nn|models|generate|optim|train|mlo|workloads|report|onnx|io|dist)
set(ebb_caller_options $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CONFIG:Release>>:-O1>)
if(EBB_SANITIZE)
  string(APPEND ebb_caller_rooms "|text|prune|autodiff|passes|graph")
  set(ebb_caller_options $<$<COMPILE_LANGUAGE:CXX>:-O0>)
endif()

# ebb_precompile(TARGET [HEADER...]) compiles the standard headers that most sources include, and those given, once for
# the target; that is a third of a source's time. With a compiler cache they stay text: a precompiled file would keep the
# cache from sharing objects between trees. Nor does such a compiler search its memory for what can be reused before it
# has taken half a gigabyte: a tenth of its time.
function(ebb_precompile target)
  if(NOT CMAKE_CXX_COMPILER_LAUNCHER)
    target_precompile_headers(${target} PRIVATE ${ARGN} <fmt/core.h> <algorithm> <array> <cmath> <cstdint> <cstring>
      <filesystem> <fstream> <functional> <map> <memory> <numeric> <optional> <set> <span> <string> <string_view>
      <unordered_map> <utility> <variant> <vector>)
    ebb_spend_memory(${target})
  endif()
endfunction()
# The same with the headers of another target, whose options must be the same.
function(ebb_precompile_as target other)
  if(NOT CMAKE_CXX_COMPILER_LAUNCHER)
    target_precompile_headers(${target} REUSE_FROM ${other})
    ebb_spend_memory(${target})
  endif()
endfunction()
function(ebb_spend_memory target)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:--param=ggc-min-heapsize=524288>)
  endif()
endfunction()

# ebb_sort_by_header(LIST) puts sources next to one another that include the same large header, directly or by a header
# of src, so that few batches (ebb_unite) include it: each compiles all of it that any of its sources uses.
function(ebb_sort_by_header list)
  set(rest ${${list}})
  set(sorted "")
  file(GLOB_RECURSE headers RELATIVE ${CMAKE_SOURCE_DIR}/src CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/*.h)
  foreach(large IN ITEMS CLI/CLI nlohmann/json)
    set(names ${large}.hpp)
    foreach(header IN LISTS headers)
      file(STRINGS ${CMAKE_SOURCE_DIR}/src/${header} found REGEX "^#include <${large}\\.hpp>" LIMIT_COUNT 1)
      if(found)
        string(APPEND names "|${header}")
      endif()
    endforeach()
    foreach(source IN LISTS rest)
      file(STRINGS ${source} found REGEX "^#include [<\"](${names})[>\"]" LIMIT_COUNT 1)
      if(found)
        list(APPEND sorted ${source})
      endif()
    endforeach()
    list(REMOVE_ITEM rest ${sorted})
  endforeach()
  set(${list} ${sorted} ${rest} PARENT_SCOPE)
endfunction()

# ebb_unite(TARGET) compiles the target's sources eight at a time, as most of a source's time goes into headers: a fresh
# build takes less than half as long. Sources of one batch share their unnamed namespaces, so names in these must differ.
# Kernels stay apart: what is inlined into one decides its bits.
function(ebb_unite target)
  set_target_properties(${target} PROPERTIES UNITY_BUILD ${EBB_UNITE} UNITY_BUILD_BATCH_SIZE 8)
endfunction()
# Kernels, and what lies beside them.
function(ebb_keep_apart)
  set_source_files_properties(${ARGN} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
endfunction()
# constexpr functions of the host serve kernels too.
target_compile_options(ebb_flags INTERFACE $<$<COMPILE_LANGUAGE:CUDA>:
  --expt-relaxed-constexpr -Xcompiler=-Wall,-Wextra,-Wno-unused-parameter -Werror=all-warnings>)
if(EBB_PARALLEL STREQUAL "threads")
  target_compile_definitions(ebb_flags INTERFACE EBB_PARALLEL_THREADS)
endif()
if(EBB_SANITIZE)
  target_compile_options(ebb_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:
    -fsanitize=${EBB_SANITIZE} -fno-omit-frame-pointer>)
  target_link_options(ebb_flags INTERFACE -fsanitize=${EBB_SANITIZE})
endif()
