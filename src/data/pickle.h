// Files of Python's pickle module, as far as they hold integers, texts and dictionaries.
//
// A pickle is a program for a stack machine, and some of its opcodes import and call Python
// functions. This reader knows the opcodes that build the three kinds of values above, in protocols
// 2 to 5. Any other opcode is an error that gives its byte and position.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace ebb::data {

class Pickle {
 public:
  using Id = std::size_t;  // a value's number in the file: values may be used several times
  using Dictionary = std::vector<std::pair<Id, Id>>;  // keys and values, in the order of the file
  using Value = std::variant<std::int64_t, std::string, Dictionary>;

  // A file of at most 64 MiB.
  static Pickle read(const std::filesystem::path& path);

  const Value& root() const { return values_[root_]; }
  const Value& operator[](Id id) const { return values_[id]; }

 private:
  friend class PickleReader;
  std::vector<Value> values_;
  Id root_ = 0;
};

}  // namespace ebb::data
