// As much of protobuf's encoding as event files and ONNX models need. Messages are built from the
// inside out; a file too large for one string is written piece by piece, with `begin_bytes` before
// bytes that follow.
#pragma once

#include <bit>
#include <cstdint>
#include <string>
#include <string_view>

namespace ebb::protobuf {

class Message {
 public:
  Message& integer(int field, std::int64_t value) {
    key(field, 0);
    return varint(static_cast<std::uint64_t>(value)), *this;
  }
  Message& real64(int field, double value) {
    key(field, 1);
    return little_endian(bytes_, std::bit_cast<std::uint64_t>(value)), *this;
  }
  Message& bytes(int field, std::string_view value) {
    begin_bytes(field, value.size());
    return bytes_ += value, *this;
  }
  // The start of a field whose `size` bytes, of a text or a message, the caller writes after it.
  Message& begin_bytes(int field, std::uint64_t size) {
    key(field, 2), varint(size);
    return *this;
  }
  Message& message(int field, const Message& value) { return bytes(field, value.bytes_); }
  Message& real32(int field, float value) {
    key(field, 5);
    return little_endian(bytes_, std::bit_cast<std::uint32_t>(value)), *this;
  }

  // The fields of another message, after those of this one.
  Message& append(const Message& other) { return bytes_ += other.bytes_, *this; }

  const std::string& encoded() const { return bytes_; }
  std::uint64_t size() const { return bytes_.size(); }

  template <typename Unsigned>
  static void little_endian(std::string& bytes, Unsigned value) {
    for (unsigned i = 0; i < sizeof value; ++i)
      bytes += static_cast<char>(static_cast<unsigned char>(value >> (8 * i)));
  }

 private:
  void key(int field, unsigned wire_type) {
    varint((static_cast<std::uint64_t>(field) << 3) | wire_type);
  }
  void varint(std::uint64_t value) {
    for (; value >= 0x80; value >>= 7)
      bytes_ += static_cast<char>(static_cast<unsigned char>(value | 0x80));
    bytes_ += static_cast<char>(static_cast<unsigned char>(value));
  }

  std::string bytes_;
};

}  // namespace ebb::protobuf
