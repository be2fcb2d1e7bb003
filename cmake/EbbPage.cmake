# The pages of the reports: their sources in src/report/page become strings in the library, so that a program
# writes self-contained pages without reading any file. Sets page_source, generated C++ files.
set(page_folder ${CMAKE_SOURCE_DIR}/src/report/page)
set(page_source "")

# A page as the C++ function NAME: its styles and scripts, in this order.
function(ebb_page name)
  cmake_parse_arguments(PARSE_ARGV 1 page "" "" "STYLES;SCRIPTS")
  list(TRANSFORM page_STYLES PREPEND ${page_folder}/)
  list(TRANSFORM page_SCRIPTS PREPEND ${page_folder}/)
  set(output ${CMAKE_BINARY_DIR}/generated/${name}.cpp)
  add_custom_command(OUTPUT ${output}
    COMMAND ${CMAKE_COMMAND} -D "folder=${page_folder}" -D "styles=${page_STYLES}" -D "scripts=${page_SCRIPTS}" -D "name=${name}"
            -D "output=${output}" -P ${CMAKE_SOURCE_DIR}/cmake/join_page.cmake
    DEPENDS ${page_folder}/page.html ${page_STYLES} ${page_SCRIPTS} ${CMAKE_SOURCE_DIR}/cmake/join_page.cmake
    COMMENT "Joining ${name}" VERBATIM)
  set(page_source ${page_source} ${output} PARENT_SCOPE)
endfunction()

ebb_page(page_source STYLES page.css
  SCRIPTS data.js format.js theme.js draw.js stack.js lanes.js timeline.js thumbnail.js other.js search.js bars.js frontier.js losses.js
    details.js page.js)
ebb_page(runs_page_source STYLES page.css runs.css SCRIPTS runs_data.js format.js theme.js draw.js run_chart.js runs.js)
