// A file that grows by whole records, each handed to the operating system with one write.
#pragma once

#include <filesystem>
#include <string_view>

namespace ebb::report {

class LogFile {
 public:
  LogFile() = default;
  ~LogFile();
  LogFile(LogFile&& other) noexcept;
  LogFile& operator=(LogFile&&) = delete;

  // Goes on at the end of a file, or begins it; makes its folder where there is none. A last line
  // without an end, which a crash may have left, is ended first.
  static LogFile append_lines(const std::filesystem::path& path);

  // A file that was not there before: `path`, or `path` with ".1", ".2", ... where that is taken.
  static LogFile create(const std::filesystem::path& path);

  bool is_open() const { return descriptor_ >= 0; }

  // On an error the file is cut back to its last whole record and closed, and FileError thrown.
  void write(std::string_view record);
  void close();

 private:
  LogFile(std::filesystem::path path, int descriptor)
      : path_(std::move(path)), descriptor_(descriptor) {}
  void take_back(std::size_t written);

  std::filesystem::path path_;
  int descriptor_ = -1;
};

}  // namespace ebb::report
