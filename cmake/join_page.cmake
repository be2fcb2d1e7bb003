# Puts styles and scripts into page.html and writes the result as a C++ function: folder, styles, scripts, name, output.
file(READ ${folder}/page.html html)
foreach(kind styles scripts)
  set(joined "")
  foreach(part IN LISTS ${kind})
    file(READ ${part} text)
    string(APPEND joined "${text}\n")
  endforeach()
  string(REPLACE "{{${kind}}}" "${joined}" html "${html}")
endforeach()
file(WRITE ${output} "// Made from src/report/page.
#include \"report/page_source.h\"
namespace ebb::report {
std::string_view ${name}() { return R\"ebb-page(${html})ebb-page\"; }
}  // namespace ebb::report
")
