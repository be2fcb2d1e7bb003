// Records of a CSV text as RFC 4180 has them; LF alone ends a line too.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace ebb::data {

class CsvReader {
 public:
  // `text` must outlive the reader; `path` is for messages.
  CsvReader(std::string_view text, std::filesystem::path path)
      : text_(text), path_(std::move(path)) {}

  // False at the end of the text. Empty lines are passed over.
  bool next(std::vector<std::string>& fields);

  std::int64_t line() const { return record_line_; }  // where the last record began, from 1

 private:
  bool at_line_end() const;
  void take_line_end();
  void quoted(std::string& field);
  void plain(std::string& field);

  std::string_view text_;
  std::filesystem::path path_;
  std::size_t at_ = 0;
  std::int64_t line_ = 1, record_line_ = 1;
};

}  // namespace ebb::data
