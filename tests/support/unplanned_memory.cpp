// Loaded into a process by LD_PRELOAD: takes 64 MiB that no plan knows of, once the process asks
// how much space a disk has. `ebb train --checkpoint` does so between planning and the first step.
#include <dlfcn.h>
#include <sys/statvfs.h>

#include <cstdlib>
#include <cstring>

extern "C" int statvfs(const char* path, struct statvfs* disk) noexcept {
  constexpr std::size_t size = 64 << 20;
  static void* taken = nullptr;
  if (!taken && (taken = std::malloc(size))) std::memset(taken, 1, size);
  using Statvfs = int (*)(const char*, struct statvfs*);
  return reinterpret_cast<Statvfs>(dlsym(RTLD_NEXT, "statvfs"))(path, disk);
}
