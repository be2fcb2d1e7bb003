// Logs of a run: losses, norms and other numbers by step, for programs and people to read while it
// runs and afterwards.
//
//   auto log = report::json_lines("run/log.jsonl");
//   log->scalar("loss", step, loss);
//
// A log that cannot be written is reported once: the call that meets the error throws FileError,
// which names the path, and closes the log; later calls do nothing. A training loop can catch the
// error and continue without its log. Each record is passed to the operating system in one piece
// before the call returns, so nothing is lost if the program dies; a record that does not fit on
// the disk is removed.
//
// A log is used from one thread at a time.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string_view>
#include <vector>

namespace ebb::report {

class RunLog {
 public:
  RunLog() = default;
  virtual ~RunLog() = default;  // closes; an error it meets is dropped
  RunLog(const RunLog&) = delete;
  RunLog& operator=(const RunLog&) = delete;

  // Tags name a series, "loss" or "train/loss". Bytes that are not UTF-8 become U+FFFD.
  virtual void scalar(std::string_view tag, std::int64_t step, double value) = 0;
  virtual void text(std::string_view tag, std::int64_t step, std::string_view text) = 0;

  // Ends the log. Calls after it do nothing.
  virtual void close() = 0;
};

// One JSON object a line, added at the end of the file:
//   {"step":3,"tag":"loss","value":2.30258509}
//   {"step":3,"tag":"sample","text":"once upon a time"}
// Numbers have 9 significant digits, enough for every float32. JSON has no infinities and no NaN:
// those are {"step":3,"tag":"loss","value":null,"note":"nan"}, or "inf", or "-inf".
// The folder is made if it is not there.
std::unique_ptr<RunLog> json_lines(const std::filesystem::path& path);

// A new event file in `folder` for TensorBoard, which shows scalars (as float32) and texts (as
// Markdown). The folder is made if it is not there.
std::unique_ptr<RunLog> tensorboard(const std::filesystem::path& folder);

// Keeps nothing.
std::unique_ptr<RunLog> none();

// Passes every call to all logs, even if some of them fail; the failures are then thrown as one
// error.
std::unique_ptr<RunLog> all_of(std::vector<std::unique_ptr<RunLog>> logs);

}  // namespace ebb::report
