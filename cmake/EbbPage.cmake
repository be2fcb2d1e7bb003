# The page of the reports: its sources in src/report/page become one string in the library, so that a program
# writes self-contained pages without reading any file. Sets page_source, a generated C++ file.
set(page_folder ${CMAKE_SOURCE_DIR}/src/report/page)
set(page_scripts data.js format.js theme.js draw.js stack.js lanes.js timeline.js thumbnail.js other.js search.js bars.js frontier.js losses.js
  details.js page.js)
list(TRANSFORM page_scripts PREPEND ${page_folder}/)
set(page_source ${CMAKE_BINARY_DIR}/generated/page_source.cpp)
add_custom_command(OUTPUT ${page_source}
  COMMAND ${CMAKE_COMMAND} -D "folder=${page_folder}" -D "scripts=${page_scripts}" -D "output=${page_source}"
          -P ${CMAKE_SOURCE_DIR}/cmake/join_page.cmake
  DEPENDS ${page_folder}/page.html ${page_folder}/page.css ${page_scripts} ${CMAKE_SOURCE_DIR}/cmake/join_page.cmake
  COMMENT "Joining the page" VERBATIM)
