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

  // Appends to a file, or creates it and its folder. Terminates an incomplete last line, which a
  // crash may have left.
  static LogFile append_lines(const std::filesystem::path& path);

  // Creates a new file: `path`, or `path` with ".1", ".2", ... if it exists.
  static LogFile create(const std::filesystem::path& path);

  bool is_open() const { return descriptor_ >= 0; }

  // On an error, truncates the file to its last complete record, closes it and throws FileError.
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
