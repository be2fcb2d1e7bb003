// Shared libraries that are loaded on first use, so that programs start on machines without them.
#pragma once

#include <initializer_list>
#include <string>

namespace ebb::cuda {

class Library {
 public:
  // Tries the file names in turn, each where the system looks and where CUDA installs. Throws a
  // DeviceError that names `what` when there is none.
  Library(std::string what, std::initializer_list<const char*> files);

  // The address of a function; throws when the library does not have it.
  template <class Function>
  void find(const char* name, Function& function) const {
    function = reinterpret_cast<Function>(address(name));
  }

 private:
  void* address(const char* name) const;

  std::string what_;
  void* handle_ = nullptr;  // never closed: the functions are used until the process ends
};

}  // namespace ebb::cuda
