// Reads the JSON lines that report::json_lines writes.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace ebb::report {

struct LoggedValue {
  std::int64_t step = 0;
  double value = 0.0;  // infinities and NaN as they were logged
};

// Values by tag, in order of steps. A run that was resumed logs some steps a second time: the last
// record of a step counts. Records of texts are passed over. A last line without an end, of a run
// that is being written, is left out; any other line that is no record is a FileError that names
// it.
using LoggedRun = std::map<std::string, std::vector<LoggedValue>>;
LoggedRun read_json_lines(const std::filesystem::path& path);

}  // namespace ebb::report
