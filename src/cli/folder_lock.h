// A lock on a folder, held by the run that keeps its checkpoints there. It ends with the process,
// however that ends, and leaves nothing in the folder.
#pragma once

#include <filesystem>

namespace ebb::cli {

class FolderLock {
 public:
  // Throws if another run has the lock. There is none where no folder is, or where the file system
  // has no locks.
  explicit FolderLock(const std::filesystem::path& folder);
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

 private:
  int descriptor_ = -1;
};

}  // namespace ebb::cli
