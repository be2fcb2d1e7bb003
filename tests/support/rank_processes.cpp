#include "support/rank_processes.h"

#include <filesystem>
#include <fstream>

namespace ebb::test {

std::vector<pid_t> processes_of(const std::string& mark, const std::string& rank) {
  std::vector<pid_t> found;
  for (const std::filesystem::directory_entry& entry :
       std::filesystem::directory_iterator("/proc")) {
    const std::string name = entry.path().filename().string();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    const auto text = [&](const char* file) {
      std::ifstream in(entry.path() / file, std::ios::binary);
      return std::string{std::istreambuf_iterator<char>(in), {}};
    };
    const std::string environment = '\0' + text("environ"), wanted = '\0' + rank + '\0';
    if (text("cmdline").find(mark) != std::string::npos &&
        environment.find(wanted) != std::string::npos)
      found.push_back(static_cast<pid_t>(std::stol(name)));
  }
  return found;
}

}  // namespace ebb::test
