#include "core/cuda/runtime_kernel.h"

#include <fmt/core.h>
#include <nvrtc.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <optional>
#include <vector>

#include "core/cuda/check.h"
#include "core/cuda/context.h"
#include "core/cuda/library.h"
#include "core/disk_cache.h"
#include "ebb/error.h"

namespace ebb::cuda {
namespace {

struct Nvrtc {
  decltype(&nvrtcVersion) version;
  decltype(&nvrtcGetErrorString) error_string;
  decltype(&nvrtcGetNumSupportedArchs) processor_count;
  decltype(&nvrtcGetSupportedArchs) processors;
  decltype(&nvrtcCreateProgram) create;
  decltype(&nvrtcDestroyProgram) destroy;
  decltype(&nvrtcCompileProgram) compile;
  decltype(&nvrtcGetProgramLogSize) log_size;
  decltype(&nvrtcGetProgramLog) log;
  decltype(&nvrtcGetCUBINSize) cubin_size;
  decltype(&nvrtcGetCUBIN) cubin;
  decltype(&nvrtcGetPTXSize) ptx_size;
  decltype(&nvrtcGetPTX) ptx;

  Nvrtc() {
    const Library library("NVRTC", {"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"});
    library.find("nvrtcVersion", version);
    library.find("nvrtcGetErrorString", error_string);
    library.find("nvrtcGetNumSupportedArchs", processor_count);
    library.find("nvrtcGetSupportedArchs", processors);
    library.find("nvrtcCreateProgram", create);
    library.find("nvrtcDestroyProgram", destroy);
    library.find("nvrtcCompileProgram", compile);
    library.find("nvrtcGetProgramLogSize", log_size);
    library.find("nvrtcGetProgramLog", log);
    library.find("nvrtcGetCUBINSize", cubin_size);
    library.find("nvrtcGetCUBIN", cubin);
    library.find("nvrtcGetPTXSize", ptx_size);
    library.find("nvrtcGetPTX", ptx);
  }

  void check(nvrtcResult result, const char* call) const {
    if (result != NVRTC_SUCCESS)
      throw DeviceError(fmt::format("[cuda] {}: {}", call, error_string(result)));
  }
};

const Nvrtc& nvrtc() {
  static const Nvrtc functions;
  return functions;
}

// "sm_90" for a processor that NVRTC knows; for a newer one the PTX of the newest that it knows,
// which the driver compiles.
std::string processor_of(Device device) {
  const Properties p = properties(device);
  const int own = p.major * 10 + p.minor;
  int count = 0;
  nvrtc().check(nvrtc().processor_count(&count), "nvrtcGetNumSupportedArchs");
  std::vector<int> known(static_cast<std::size_t>(count));
  nvrtc().check(nvrtc().processors(known.data()), "nvrtcGetSupportedArchs");
  if (std::find(known.begin(), known.end(), own) != known.end()) return fmt::format("sm_{}", own);
  int newest = 0;
  for (int each : known)
    if (each < own) newest = std::max(newest, each);
  return fmt::format("compute_{}", newest);
}

std::string cached_code(const std::string& source, const std::string& processor) {
  int major = 0, minor = 0;
  nvrtc().check(nvrtc().version(&major, &minor), "nvrtcVersion");
  const DiskCache cache("kernels",
                        fmt::format("{} NVRTC {}.{}\n{}", processor, major, minor, source));
  if (auto code = cache.read()) return *code;
  std::string code = compile(source, processor);
  cache.write(code);
  return code;
}

}  // namespace

std::string compile(const std::string& source, const std::string& processor) {
  const Nvrtc& f = nvrtc();
  const bool ptx = processor.starts_with("compute_");
  const std::string target = "--gpu-architecture=" + processor;
  const char* options[] = {target.c_str(), "--std=c++17", "--fmad=false", "-default-device"};
  nvrtcProgram program = nullptr;
  f.check(f.create(&program, source.c_str(), "ebb.cu", 0, nullptr, nullptr), "nvrtcCreateProgram");
  const nvrtcResult result = f.compile(program, 4, options);
  std::string text;
  std::size_t size = 0;
  if (result != NVRTC_SUCCESS) {
    if (f.log_size(program, &size) == NVRTC_SUCCESS) {
      text.resize(size);
      (void)f.log(program, text.data());
    }
  } else if ((ptx ? f.ptx_size(program, &size) : f.cubin_size(program, &size)) == NVRTC_SUCCESS) {
    text.resize(size);
    f.check(ptx ? f.ptx(program, text.data()) : f.cubin(program, text.data()), "nvrtcGetCUBIN");
  }
  (void)f.destroy(&program);
  if (result != NVRTC_SUCCESS)
    throw DeviceError(fmt::format("[cuda] nvrtcCompileProgram: {}\n{}\n{}", f.error_string(result),
                                  text, source));
  return text;
}

cudaKernel_t runtime_kernel(Device device, const std::string& source, const char* name) {
  // Loaded code stays until the process ends; see Context.
  static auto& loaded = *new std::map<std::pair<int, std::string>, cudaKernel_t>;
  static std::mutex mutex;
  use(device);
  const std::lock_guard lock(mutex);
  cudaKernel_t& kernel = loaded[{device.index, source}];
  if (kernel) return kernel;
  const std::string code = cached_code(source, processor_of(device));
  cudaLibrary_t library = nullptr;
  EBB_CUDA_CHECK(
      cudaLibraryLoadData(&library, code.data(), nullptr, nullptr, 0, nullptr, nullptr, 0));
  EBB_CUDA_CHECK(cudaLibraryGetKernel(&kernel, library, name));
  return kernel;
}

}  // namespace ebb::cuda
