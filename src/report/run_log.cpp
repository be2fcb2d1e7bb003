// Logs without a file of their own.
#include "ebb/report/run_log.h"

#include <string>
#include <utility>

#include "ebb/error.h"

namespace ebb::report {
namespace {

class None final : public RunLog {
 public:
  void scalar(std::string_view, std::int64_t, double) override {}
  void text(std::string_view, std::int64_t, std::string_view) override {}
  void close() override {}
};

class AllOf final : public RunLog {
 public:
  explicit AllOf(std::vector<std::unique_ptr<RunLog>> logs) : logs_(std::move(logs)) {}

  void scalar(std::string_view tag, std::int64_t step, double value) override {
    each([&](RunLog& log) { log.scalar(tag, step, value); });
  }
  void text(std::string_view tag, std::int64_t step, std::string_view text) override {
    each([&](RunLog& log) { log.text(tag, step, text); });
  }
  void close() override {
    each([](RunLog& log) { log.close(); });
  }

 private:
  template <typename Call>
  void each(Call call) {
    std::string failures;  // every one of them: a log reports its failure only once
    for (const auto& log : logs_) {
      try {
        call(*log);
      } catch (const FileError& error) {
        if (!failures.empty()) failures += "; ";
        failures += error.what();
      }
    }
    if (!failures.empty()) throw FileError(failures);
  }

  std::vector<std::unique_ptr<RunLog>> logs_;
};

}  // namespace

std::unique_ptr<RunLog> none() { return std::make_unique<None>(); }

std::unique_ptr<RunLog> all_of(std::vector<std::unique_ptr<RunLog>> logs) {
  return std::make_unique<AllOf>(std::move(logs));
}

}  // namespace ebb::report
