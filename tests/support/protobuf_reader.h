// Reads the fields of a protobuf message, to check what ebb writes.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace ebb::test {

struct ProtobufField {
  int number = 0;
  std::uint64_t value = 0;  // of a whole number
  std::string_view bytes;   // of a text or message, or 4 or 8 bytes of a real number
};

class ProtobufReader {
 public:
  explicit ProtobufReader(std::string_view message) {
    while (!message.empty()) fields_.push_back(next(message));
  }

  std::vector<ProtobufField> all(int number) const {
    std::vector<ProtobufField> found;
    for (const ProtobufField& field : fields_)
      if (field.number == number) found.push_back(field);
    return found;
  }
  // The only field of this number.
  ProtobufField one(int number) const {
    const std::vector<ProtobufField> found = all(number);
    if (found.size() != 1) throw std::runtime_error("not one field " + std::to_string(number));
    return found.front();
  }
  std::string text(int number) const { return std::string(one(number).bytes); }

 private:
  static std::uint64_t varint(std::string_view& rest) {
    std::uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      const auto byte = static_cast<unsigned char>(take(rest, 1).front());
      value |= static_cast<std::uint64_t>(byte & 0x7f) << shift;
      if (byte < 0x80) return value;
    }
    throw std::runtime_error("a number of more than 64 bits");
  }
  static std::string_view take(std::string_view& rest, std::uint64_t count) {
    if (count > rest.size()) throw std::runtime_error("the message ends within a field");
    const std::string_view taken = rest.substr(0, count);
    rest.remove_prefix(count);
    return taken;
  }
  static ProtobufField next(std::string_view& rest) {
    const std::uint64_t key = varint(rest);
    ProtobufField field{static_cast<int>(key >> 3), 0, {}};
    const std::uint64_t wire_type = key & 7;
    if (wire_type == 0)
      field.value = varint(rest);
    else if (wire_type == 1 || wire_type == 5)
      field.bytes = take(rest, wire_type == 1 ? 8 : 4);
    else if (wire_type == 2)
      field.bytes = take(rest, varint(rest));
    else
      throw std::runtime_error("an unknown kind of field");
    return field;
  }

  std::vector<ProtobufField> fields_;
};

}  // namespace ebb::test
