# OpenBLAS built on OpenMP, so that it shares its threads with oneDNN and ebb. Debian keeps its header and
# library in folders of their own; elsewhere any openblas with cblas.h will do.
find_path(OpenBLASOpenMP_INCLUDE cblas.h PATH_SUFFIXES x86_64-linux-gnu/openblas-openmp openblas-openmp openblas)
find_library(OpenBLASOpenMP_LIBRARY openblas PATH_SUFFIXES x86_64-linux-gnu/openblas-openmp openblas-openmp)
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(OpenBLASOpenMP REQUIRED_VARS OpenBLASOpenMP_LIBRARY OpenBLASOpenMP_INCLUDE)
if(OpenBLASOpenMP_FOUND AND NOT TARGET OpenBLASOpenMP)
  add_library(OpenBLASOpenMP UNKNOWN IMPORTED)
  set_target_properties(OpenBLASOpenMP PROPERTIES IMPORTED_LOCATION ${OpenBLASOpenMP_LIBRARY}
                                                  INTERFACE_INCLUDE_DIRECTORIES ${OpenBLASOpenMP_INCLUDE})
endif()
