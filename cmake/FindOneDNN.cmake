# oneDNN by its header and library. Its own package file asks for OpenCL's headers too, which ebb never uses.
find_path(OneDNN_INCLUDE oneapi/dnnl/dnnl.hpp)
find_library(OneDNN_LIBRARY dnnl)
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(OneDNN REQUIRED_VARS OneDNN_LIBRARY OneDNN_INCLUDE)
if(OneDNN_FOUND AND NOT TARGET OneDNN)
  add_library(OneDNN UNKNOWN IMPORTED)
  set_target_properties(OneDNN PROPERTIES IMPORTED_LOCATION ${OneDNN_LIBRARY} INTERFACE_INCLUDE_DIRECTORIES ${OneDNN_INCLUDE})
endif()
