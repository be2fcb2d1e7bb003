#include "data/csv.h"

#include "data/file.h"

namespace ebb::data {

bool CsvReader::at_line_end() const {
  return text_[at_] == '\n' ||
         (text_[at_] == '\r' && at_ + 1 < text_.size() && text_[at_ + 1] == '\n');
}

void CsvReader::take_line_end() {
  at_ += text_[at_] == '\r' ? 2 : 1;
  ++line_;
}

void CsvReader::quoted(std::string& field) {
  const std::int64_t opened = line_;
  for (++at_;; ++at_) {
    if (at_ == text_.size())
      fail_file(path_,
                "line {}: a quoted field begins here, but the file ends without its closing "
                "quote",
                opened);
    if (text_[at_] == '"') {
      if (++at_ == text_.size() || text_[at_] != '"') break;  // two quotes stand for one
    }
    if (text_[at_] == '\n') ++line_;
    field += text_[at_];
  }
  if (at_ < text_.size() && text_[at_] != ',' && !at_line_end())
    fail_file(path_,
              "line {}: a comma or a line end is expected after a closing quote, but byte "
              "0x{:02x} came",
              line_, static_cast<unsigned char>(text_[at_]));
}

void CsvReader::plain(std::string& field) {
  for (; at_ < text_.size() && text_[at_] != ',' && !at_line_end(); ++at_) {
    if (text_[at_] == '"')
      fail_file(path_, "line {}: a field with a quote inside must be quoted as a whole", line_);
    field += text_[at_];
  }
}

bool CsvReader::next(std::vector<std::string>& fields) {
  fields.clear();
  while (at_ < text_.size() && at_line_end()) take_line_end();
  if (at_ == text_.size()) return false;
  record_line_ = line_;
  for (;;) {
    std::string& field = fields.emplace_back();
    if (at_ < text_.size() && text_[at_] == '"')
      quoted(field);
    else
      plain(field);
    if (at_ == text_.size()) return true;
    if (text_[at_] != ',') {
      take_line_end();
      return true;
    }
    ++at_;
  }
}

}  // namespace ebb::data
