// Loaded into a process by LD_PRELOAD: takes 64 MiB that no plan knows of, once the process asks
// how much space a disk has, or puts a second file in its place. `ebb train --checkpoint` does the
// one between planning and the first step; `ebb profile` the other after its steps.
#include <dlfcn.h>
#include <sys/statvfs.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

static void take() {
  constexpr std::size_t size = 64 << 20;
  static void* taken = nullptr;
  if (!taken && (taken = std::malloc(size))) std::memset(taken, 1, size);
}

extern "C" int rename(const char* from, const char* to) noexcept {
  static int files = 0;
  if (++files == 2) take();
  using Rename = int (*)(const char*, const char*);
  return reinterpret_cast<Rename>(dlsym(RTLD_NEXT, "rename"))(from, to);
}

extern "C" int statvfs(const char* path, struct statvfs* disk) noexcept {
  take();
  using Statvfs = int (*)(const char*, struct statvfs*);
  return reinterpret_cast<Statvfs>(dlsym(RTLD_NEXT, "statvfs"))(path, disk);
}
