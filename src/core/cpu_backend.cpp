#include "core/cpu_backend.h"

#include <fmt/core.h>
#include <unistd.h>

#include <cstring>
#include <fstream>

#include "core/host_storage.h"
#include "ebb/threads.h"

namespace ebb {
namespace {

std::string processor_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);)
    if (line.starts_with("model name"))
      if (const auto colon = line.find(": "); colon != std::string::npos)
        return line.substr(colon + 2);
  return "CPU";
}

class CpuBackend final : public Backend {
 public:
  void require(Device) const override {}
  std::string name(Device) const override {
    return fmt::format("{}, {} thread{}", processor_name(), threads(), threads() == 1 ? "" : "s");
  }
  Bytes memory(Device) const override {
    return {static_cast<std::int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE)};
  }

  Bytes reservation(Bytes size, PageSize pages) const override {
    return host_reservation(size, pages);
  }
  std::shared_ptr<Storage> allocate(Device, Bytes size, PageSize pages) const override {
    return std::make_shared<HostStorage>(size, pages, HostStorage::Memory::at_once);
  }
  std::shared_ptr<Storage> growable(Device, Bytes limit) const override {
    return std::make_shared<HostStorage>(limit, PageSize::standard, HostStorage::Memory::on_resize);
  }
  bool chooses_pages() const override { return true; }

  void write(Device device, void* to, const void* from, Bytes size) const override {
    copy(device, to, from, size);
  }
  void read(Device device, void* to, const void* from, Bytes size) const override {
    copy(device, to, from, size);
  }
  void copy(Device, void* to, const void* from, Bytes size) const override {
    if (size.count > 0) std::memcpy(to, from, static_cast<std::size_t>(size.count));
  }

  int lanes() const override { return 1; }
  bool runs_beside_host() const override { return false; }
  Tier second_tier() const override { return Tier::disk; }
  bool overlaps() const override { return false; }
  bool can_be_tuned(Device) const override { return false; }
};

}  // namespace

const Backend& cpu_backend() {
  static const CpuBackend backend;
  return backend;
}

}  // namespace ebb
