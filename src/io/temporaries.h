// The temporary files that AtomicFile writes beside its targets: NAME.PID.tmp or NAME.PID-K.tmp.
#pragma once

#include <filesystem>
#include <functional>
#include <string>

namespace ebb::io {

// Removes those in a folder whose writer is gone, for the targets that `of` accepts by name. A
// writer holds a lock on its file, so that of an active writer is never removed.
void sweep_temporaries(const std::filesystem::path& folder,
                       const std::function<bool(const std::string& name)>& of);

}  // namespace ebb::io
