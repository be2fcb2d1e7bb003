# liburing by its header and library. The archive first: programs then start on machines that do not have it.
find_path(Liburing_INCLUDE liburing.h)
find_library(Liburing_LIBRARY NAMES liburing.a uring)
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(Liburing REQUIRED_VARS Liburing_LIBRARY Liburing_INCLUDE)
if(Liburing_FOUND AND NOT TARGET Liburing)
  add_library(Liburing UNKNOWN IMPORTED)
  set_target_properties(Liburing PROPERTIES IMPORTED_LOCATION ${Liburing_LIBRARY} INTERFACE_INCLUDE_DIRECTORIES ${Liburing_INCLUDE})
endif()
