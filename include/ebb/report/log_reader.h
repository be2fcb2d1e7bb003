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

// A log has a record with this tag wherever a run begins or is resumed. Its step is the one that
// the run continues from (0 for a new run); its text is different for every run.
inline constexpr const char* begin_tag = "begin";

// The values of the last run in a log, by tag, in order of steps. A resumed run logs some steps a
// second time: the last record of a step counts, and records after the step that a run resumes from
// are dropped. Other records of texts are ignored, and so is an incomplete last line, which a run
// that is still writing may leave. Any other line that is not a record is a FileError that names
// it.
using LoggedRun = std::map<std::string, std::vector<LoggedValue>>;
// `begun`: set to the text of the last beginning, empty if the log has none.
LoggedRun read_json_lines(const std::filesystem::path& path, std::string* begun = nullptr);

}  // namespace ebb::report
