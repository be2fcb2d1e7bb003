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

// Where a run begins or goes on, a log has a record with this tag, the step that it goes on from (0
// at first) and a text that no other run has.
inline constexpr const char* begin_tag = "begin";

// Values by tag, in order of steps, of the run that the log was written for last. A run that was
// resumed logs some steps a second time: the last record of a step counts, and what was logged
// after the step that a run begins at does not. Other records of texts are passed over. A last line
// without an end, of a run that is being written, is left out; any other line that is no record is
// a FileError that names it.
using LoggedRun = std::map<std::string, std::vector<LoggedValue>>;
// `begun`: set to the text of the last beginning, empty if the log has none.
LoggedRun read_json_lines(const std::filesystem::path& path, std::string* begun = nullptr);

}  // namespace ebb::report
