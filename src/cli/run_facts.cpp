#include "cli/run_facts.h"

#include <unistd.h>

#include <ctime>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "ebb/threads.h"
#include "ebb/version.h"

namespace ebb::cli {
namespace {

// Quoted so that a shell reads it back.
std::string quoted(const std::string& word) {
  const bool plain = !word.empty() && word.find_first_not_of(
                                          "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                          "0123456789-_=+,./:@%") == std::string::npos;
  if (plain) return word;
  std::string text = "'";
  for (const char c : word) {
    if (c == '\'')
      text += "'\\''";
    else
      text += c;
  }
  text += '\'';
  return text;
}

}  // namespace

std::string command_line() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  const std::string all{std::istreambuf_iterator<char>(file), {}};
  std::string text = "ebb";
  for (std::size_t begin = all.find('\0') + 1; begin < all.size();) {
    const std::size_t end = all.find('\0', begin);
    text += ' ';
    text += quoted(all.substr(begin, end - begin));
    if (end == std::string::npos) break;
    begin = end + 1;
  }
  return text;
}

std::string today() {
  const std::time_t now = std::time(nullptr);
  std::tm parts = {};
  gmtime_r(&now, &parts);
  char text[16];
  std::strftime(text, sizeof text, "%Y-%m-%d", &parts);
  return text;
}

Bytes physical_memory() { return sysconf(_SC_PHYS_PAGES) * Bytes{sysconf(_SC_PAGESIZE)}; }

nlohmann::ordered_json run_facts(const std::string& device) {
  return {{"date", today()},
          {"version", version()},
          {"command", command_line()},
          {"device", device},
          {"threads", threads()},
          {"cores", physical_cores()},
          {"memory_bytes", physical_memory().count}};
}

}  // namespace ebb::cli
