#include <fmt/core.h>

#include <cmath>
#include <iterator>
#include <string>

#include "ebb/report/run_log.h"
#include "report/log_file.h"
#include "report/utf8.h"

namespace ebb::report {
namespace {

class JsonLines final : public RunLog {
 public:
  explicit JsonLines(const std::filesystem::path& path) : file_(LogFile::append_lines(path)) {}

  void scalar(std::string_view tag, std::int64_t step, double value) override {
    if (!file_.is_open()) return;
    begin(tag, step);
    if (std::isfinite(value)) {
      fmt::format_to(std::back_inserter(line_), R"("value":{:.9g})", value);
    } else {
      line_ += R"("value":null,"note":")";
      line_ += std::isnan(value) ? "nan" : value > 0.0 ? "inf" : "-inf";
      line_ += '"';
    }
    end();
  }

  void text(std::string_view tag, std::int64_t step, std::string_view text) override {
    if (!file_.is_open()) return;
    begin(tag, step);
    line_ += R"("text":)";
    quote(text);
    end();
  }

  void close() override { file_.close(); }

 private:
  void begin(std::string_view tag, std::int64_t step) {
    line_.clear();
    fmt::format_to(std::back_inserter(line_), R"({{"step":{},"tag":)", step);
    quote(tag);
    line_ += ',';
  }

  void end() {
    line_ += "}\n";
    file_.write(line_);
  }

  void quote(std::string_view text) {
    line_ += '"';
    while (!text.empty()) {
      const CodePoint point = first_code_point(text);
      text.remove_prefix(point.length);
      if (point.value == U'"' || point.value == U'\\') {
        line_ += '\\';
        line_ += static_cast<char>(point.value);
      } else if (point.value == U'\n') {
        line_ += "\\n";
      } else if (point.value < 0x20) {
        fmt::format_to(std::back_inserter(line_), "\\u{:04x}",
                       static_cast<std::uint32_t>(point.value));
      } else {
        append_utf8(line_, point.value);
      }
    }
    line_ += '"';
  }

  LogFile file_;
  std::string line_;  // reused to avoid allocation
};

}  // namespace

std::unique_ptr<RunLog> json_lines(const std::filesystem::path& path) {
  return std::make_unique<JsonLines>(path);
}

}  // namespace ebb::report
