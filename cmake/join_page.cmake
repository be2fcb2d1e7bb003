# Puts the styles and scripts into page.html and writes the result as a C++ string: folder, scripts, output.
file(READ ${folder}/page.html html)
file(READ ${folder}/page.css styles)
set(code "")
foreach(script IN LISTS scripts)
  file(READ ${script} text)
  string(APPEND code "${text}\n")
endforeach()
string(REPLACE "{{styles}}" "${styles}" html "${html}")
string(REPLACE "{{scripts}}" "${code}" html "${html}")
file(WRITE ${output} "// Made from src/report/page.
#include \"report/page_source.h\"
namespace ebb::report {
std::string_view page_source() { return R\"ebb-page(${html})ebb-page\"; }
}  // namespace ebb::report
")
