#include "data/pickle.h"

#include <optional>
#include <string_view>
#include <unordered_map>

#include "core/utf8.h"
#include "data/file.h"

namespace ebb::data {
namespace {

constexpr std::int64_t most_pickle_bytes = 64 << 20;

// Names of Python's pickletools.
enum Opcode : unsigned char {
  op_mark = '(',
  op_stop = '.',
  op_binint = 'J',
  op_binint1 = 'K',
  op_binint2 = 'M',
  op_binunicode = 'X',
  op_binget = 'h',
  op_long_binget = 'j',
  op_binput = 'q',
  op_long_binput = 'r',
  op_setitem = 's',
  op_setitems = 'u',
  op_empty_dict = '}',
  op_proto = 0x80,
  op_long1 = 0x8A,
  op_short_binunicode = 0x8C,
  op_binunicode8 = 0x8D,
  op_memoize = 0x94,
  op_frame = 0x95,
};

}  // namespace

class PickleReader {
 public:
  PickleReader(const std::filesystem::path& path, std::string_view bytes)
      : path_(path), bytes_(bytes) {}

  Pickle read() {
    if (take(1) != "\x80") fail(0, "a pickle of protocol 2 to 5 is expected");
    const std::uint64_t protocol = number(1);
    if (protocol < 2 || protocol > 5) fail(1, "protocols 2 to 5 are read, but it has {}", protocol);
    for (;;) {
      const std::size_t at = at_;
      const auto opcode = static_cast<unsigned char>(take(1)[0]);
      if (opcode == op_stop) break;
      run(opcode, at);
    }
    if (stack_.size() != 1 || !stack_[0]) fail(at_, "it ends with other than one value");
    if (at_ != bytes_.size()) fail(at_, "{} bytes come after its end", bytes_.size() - at_);
    result_.root_ = *stack_[0];
    return std::move(result_);
  }

 private:
  using Id = Pickle::Id;

  template <class... Args>
  [[noreturn]] void fail(std::size_t at, fmt::format_string<Args...> format, Args&&... args) const {
    fail_file(path_, "at byte {}: {}", at, fmt::format(format, std::forward<Args>(args)...));
  }

  std::string_view take(std::uint64_t count) {
    if (count > bytes_.size() - at_)
      fail(at_, "{} more bytes are expected, but {} are left", count, bytes_.size() - at_);
    const std::string_view piece = bytes_.substr(at_, static_cast<std::size_t>(count));
    at_ += piece.size();
    return piece;
  }

  // An unsigned little-endian number.
  std::uint64_t number(std::uint64_t width) {
    const std::string_view piece = take(width);
    std::uint64_t value = 0;
    for (std::size_t i = piece.size(); i-- > 0;)
      value = value << 8 | static_cast<unsigned char>(piece[i]);
    return value;
  }

  // A number in two's complement.
  std::int64_t signed_number(std::uint64_t width) {
    if (width == 0) return 0;
    const auto unused = static_cast<int>(64 - 8 * width);
    return static_cast<std::int64_t>(number(width) << unused) >> unused;
  }

  void push(Pickle::Value value) {
    stack_.push_back(result_.values_.size());
    result_.values_.push_back(std::move(value));
  }

  void push_text(std::uint64_t size, std::size_t at) {
    const std::string_view text = take(size);
    if (!is_utf8(text)) fail(at, "a text is not UTF-8");
    push(std::string(text));
  }

  // The value on top of the stack. A mark is not a value.
  Id top(std::size_t at) const {
    if (stack_.empty() || !stack_.back()) fail(at, "a value is missing before this opcode");
    return *stack_.back();
  }

  void get(std::uint64_t key, std::size_t at) {
    const auto found = memo_.find(key);
    if (found == memo_.end()) fail(at, "it refers to value {}, which it has not stored", key);
    stack_.push_back(found->second);
  }

  // Adds the keys and values above the `first` entry of the stack to the dictionary below them.
  void set_items(std::size_t first, std::size_t below, std::size_t at) {
    Pickle::Dictionary* into =
        below < stack_.size() && stack_[below]
            ? std::get_if<Pickle::Dictionary>(&result_.values_[*stack_[below]])
            : nullptr;
    if (!into || (stack_.size() - first) % 2 != 0)
      fail(at, "pairs of keys and values of a dictionary are expected before this opcode");
    for (std::size_t i = first; i < stack_.size(); i += 2) {
      if (!stack_[i] || !stack_[i + 1]) fail(at, "a key or a value is missing before this opcode");
      into->emplace_back(*stack_[i], *stack_[i + 1]);
    }
    stack_.resize(below + 1);
  }

  void run(unsigned char opcode, std::size_t at) {
    switch (opcode) {
      case op_mark:
        return stack_.push_back({});
      case op_binint:
        return push(signed_number(4));
      case op_binint1:
        return push(static_cast<std::int64_t>(number(1)));
      case op_binint2:
        return push(static_cast<std::int64_t>(number(2)));
      case op_long1: {
        const std::uint64_t width = number(1);
        if (width > 8) fail(at, "an integer of {} bytes is larger than 64 bits", width);
        return push(signed_number(width));
      }
      case op_short_binunicode:
        return push_text(number(1), at);
      case op_binunicode:
        return push_text(number(4), at);
      case op_binunicode8:
        return push_text(number(8), at);
      case op_empty_dict:
        return push(Pickle::Dictionary{});
      case op_setitem:
        if (stack_.size() < 3) fail(at, "a key and a value are missing before this opcode");
        return set_items(stack_.size() - 2, stack_.size() - 3, at);
      case op_setitems: {
        std::size_t mark = stack_.size();
        while (mark > 0 && stack_[mark - 1]) --mark;
        if (mark < 2) fail(at, "a mark and a dictionary are missing before this opcode");
        return set_items(mark, mark - 2, at);
      }
      case op_binput:
        return store(number(1), at);
      case op_long_binput:
        return store(number(4), at);
      case op_memoize:
        return store(memo_.size(), at);
      case op_binget:
        return get(number(1), at);
      case op_long_binget:
        return get(number(4), at);
      case op_frame:  // the size of what follows, for reading ahead
        (void)number(8);
        return;
      default:
        fail(at,
             "opcode 0x{:02x} is not read: only integers, texts and dictionaries are, since other "
             "opcodes can run code",
             opcode);
    }
  }

  void store(std::uint64_t key, std::size_t at) { memo_[key] = top(at); }

  const std::filesystem::path& path_;
  std::string_view bytes_;
  std::size_t at_ = 0;
  Pickle result_;
  std::vector<std::optional<Id>> stack_;  // nothing: a mark
  std::unordered_map<std::uint64_t, Id> memo_;
};

Pickle Pickle::read(const std::filesystem::path& path) {
  const std::string bytes = File(path).text(most_pickle_bytes);
  return PickleReader(path, bytes).read();
}

}  // namespace ebb::data
