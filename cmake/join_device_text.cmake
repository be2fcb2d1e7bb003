# Writes device headers, in the order in which they include one another, as a C++ string without their includes:
# headers, output.
set(code "")
foreach(header IN LISTS headers)
  file(READ ${header} text)
  string(REGEX REPLACE "#(pragma once|include)[^\n]*\n" "" text "${text}")
  string(APPEND code "${text}\n")
endforeach()
file(WRITE ${output} "// Made from the headers that ops/reduce/fold.cuh needs.
#include \"ops/reduce/fold_text.h\"
namespace ebb {
std::string_view fold_text() { return R\"ebb-device(${code})ebb-device\"; }
}  // namespace ebb
")
