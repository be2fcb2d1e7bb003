// TensorBoard's event files: TFRecord framing around Event messages (event.proto, summary.proto and
// tensor.proto of TensorBoard give the field numbers).
#include <fmt/core.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <chrono>
#include <string>

#include "core/protobuf.h"
#include "ebb/report/run_log.h"
#include "report/crc32c.h"
#include "report/log_file.h"
#include "report/utf8.h"

namespace ebb::report {
namespace {

using protobuf::Message;

double seconds_since_1970() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

// <seconds>.<host>.<process>, as TensorFlow names them; TensorBoard reads a folder's files in order
// of name.
std::string file_name() {
  std::array<char, 256> name{};  // the last byte stays 0
  const bool named = gethostname(name.data(), name.size() - 1) == 0 && name[0] != '\0';
  const char* host = named ? name.data() : "localhost";
  return fmt::format("events.out.tfevents.{:010}.{}.{}",
                     static_cast<std::int64_t>(seconds_since_1970()), host, getpid());
}

// TFRecord stores checksums masked, so that checksums of data containing checksums stay meaningful.
std::uint32_t masked_crc(std::string_view bytes) {
  return std::rotr(crc32c(bytes), 15) + 0xA282EAD8u;
}

Message event(std::int64_t step) {
  Message message;
  message.real64(1, seconds_since_1970()).integer(2, step);
  return message;
}

// Summary.Value, up to what it holds.
Message tagged(std::string_view tag) {
  Message value;
  value.bytes(1, valid_utf8(tag));
  return value;
}

class Tensorboard final : public RunLog {
 public:
  explicit Tensorboard(const std::filesystem::path& folder)
      : file_(LogFile::create(folder / file_name())) {
    write(Message().real64(1, seconds_since_1970()).bytes(3, "brain.Event:2"));
  }

  void scalar(std::string_view tag, std::int64_t step, double value) override {
    if (!file_.is_open()) return;
    write_value(step, tagged(tag).real32(2, static_cast<float>(value)));
  }

  void text(std::string_view tag, std::int64_t step, std::string_view text) override {
    if (!file_.is_open()) return;
    constexpr std::int64_t dt_string = 7, data_class_tensor = 2;
    const Message plugin = Message().bytes(1, "text");
    const Message metadata = Message().message(1, plugin).integer(4, data_class_tensor);
    const Message one = Message().integer(1, 1);      // a dimension of size 1
    const Message shape = Message().message(2, one);  // (1)
    const Message tensor =
        Message().integer(1, dt_string).message(2, shape).bytes(8, valid_utf8(text));
    write_value(step, tagged(tag).message(8, tensor).message(9, metadata));
  }

  void close() override { file_.close(); }

 private:
  void write_value(std::int64_t step, const Message& value) {
    const Message summary = Message().message(1, value);
    write(event(step).message(5, summary));
  }

  void write(const Message& message) {
    const std::string& data = message.encoded();
    record_.clear();
    Message::little_endian(record_, static_cast<std::uint64_t>(data.size()));
    Message::little_endian(record_, masked_crc(record_));
    record_ += data;
    Message::little_endian(record_, masked_crc(data));
    file_.write(record_);
  }

  LogFile file_;
  std::string record_;  // reused to avoid allocation
};

}  // namespace

std::unique_ptr<RunLog> tensorboard(const std::filesystem::path& folder) {
  return std::make_unique<Tensorboard>(folder);
}

}  // namespace ebb::report
