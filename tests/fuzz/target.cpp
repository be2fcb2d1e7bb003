// The libFuzzer target of the reader EBB_READER. Exceptions other than ebb's errors end the
// process, which libFuzzer reports.
#include <stdlib.h>

#include <cstdint>

#include "ebb/error.h"
#include "fuzz/readers.h"

namespace {

// In memory. It stays when a fuzzer ends: tools/fuzz.py gives each fuzzer a folder and removes it.
const ebb::fuzz::Folder& folder() {
  static const ebb::fuzz::Folder made = [] {
    std::string name = (std::filesystem::temp_directory_path() / "ebb_fuzz_XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) abort();
    return name;
  }();
  return made;
}

}  // namespace

#define EBB_JOIN(a, b) a##b
#define EBB_READ(name) EBB_JOIN(read_, name)

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    ebb::fuzz::EBB_READ(EBB_READER)({reinterpret_cast<const char*>(data), size}, folder());
  } catch (const ebb::Error&) {
  }
  return 0;
}
