#include "core/cuda_backend.h"

#include <fmt/core.h>

#include "core/cuda/cuda.h"
#include "ebb/error.h"

namespace ebb {
namespace {

// Memory of a GPU. The driver decides about its pages, and it neither grows nor shrinks.
class CudaStorage final : public Storage {
 public:
  CudaStorage(Device device, Bytes size) : Storage(device, size, PageSize::standard) {
    set_data(cuda::allocate(device, size));
    set_size(size, cuda::reservation(size));
  }
  ~CudaStorage() override { cuda::release(device(), data()); }

  void resize(Bytes) override {
    throw DeviceError(fmt::format("memory on {} cannot be resized", to_string(device())));
  }
  void populate() override {}
  Bytes resident() const override { return reserved(); }
};

class CudaBackend final : public Backend {
 public:
  void require(Device device) const override { cuda::require(device); }
  std::string name(Device device) const override { return cuda::properties(device).name; }
  Bytes memory(Device device) const override { return cuda::memory_info(device).total; }

  Bytes reservation(Bytes size, PageSize) const override { return cuda::reservation(size); }
  std::shared_ptr<Storage> allocate(Device device, Bytes size, PageSize) const override {
    return std::make_shared<CudaStorage>(device, size);
  }
  std::shared_ptr<Storage> growable(Device device, Bytes) const override {
    throw DeviceError(fmt::format("memory on {} cannot grow in place", to_string(device)));
  }
  bool chooses_pages() const override { return false; }

  void write(Device device, void* to, const void* from, Bytes size) const override {
    cuda::write(device, to, from, size);
  }
  void read(Device device, void* to, const void* from, Bytes size) const override {
    cuda::read(device, to, from, size);
  }
  void copy(Device device, void* to, const void* from, Bytes size) const override {
    cuda::copy(device, to, from, size);
  }

  int lanes() const override { return 2; }
  bool runs_beside_host() const override { return true; }
  Tier second_tier() const override { return Tier::host; }
  bool overlaps() const override { return true; }
  bool can_be_tuned(Device device) const override { return device.index < cuda::device_count(); }
};

}  // namespace

const Backend& cuda_backend() {
  static const CudaBackend backend;
  return backend;
}

}  // namespace ebb
