#include "core/cuda/library.h"

#include <dlfcn.h>
#include <fmt/core.h>

#include "ebb/error.h"

namespace ebb::cuda {

Library::Library(std::string what, std::initializer_list<const char*> files)
    : what_(std::move(what)) {
  std::string reason;
  for (const char* file : files)
    for (const char* folder : {"", "/usr/local/cuda/lib64/", "/usr/local/cuda/lib/"}) {
      handle_ = dlopen((std::string(folder) + file).c_str(), RTLD_NOW | RTLD_LOCAL);
      if (handle_) return;
      if (reason.empty())
        if (const char* text = dlerror()) reason = text;  // the first is about the system's places
    }
  throw DeviceError(fmt::format("[cuda] {} is needed, but could not be loaded: {}", what_, reason));
}

void* Library::address(const char* name) const {
  if (void* found = dlsym(handle_, name)) return found;
  throw DeviceError(
      fmt::format("[cuda] {} does not have {}; another version is installed than "
                  "ebb was built for",
                  what_, name));
}

}  // namespace ebb::cuda
