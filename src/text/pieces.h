// A text on its way through the pre-tokenizers: pieces that become smaller with every step.
#pragma once

#include <cstring>
#include <initializer_list>
#include <memory>
#include <string_view>
#include <vector>

#include "text/pattern.h"

namespace ebb::text {

struct Piece {
  std::string_view text;
  bool at_start;  // whether it begins where the whole text begins
};

// Holds texts that pre-tokenizers write. What it gives out stays until clear().
class TextStore {
 public:
  // Room for `size` bytes.
  char* take(std::size_t size) {
    if (size > left_) {
      const std::size_t room = size > block_size ? size : block_size;
      if (blocks_.empty()) first_size_ = room;
      blocks_.push_back(std::make_unique<char[]>(room));
      next_ = blocks_.back().get();
      left_ = room;
    }
    char* taken = next_;
    next_ += size, left_ -= size;
    return taken;
  }
  std::string_view joined(std::string_view a, std::string_view b) {
    char* to = take(a.size() + b.size());
    std::memcpy(to, a.data(), a.size());
    if (!b.empty()) std::memcpy(to + a.size(), b.data(), b.size());
    return {to, a.size() + b.size()};
  }
  // Keeps one block for the next text.
  void clear() {
    if (blocks_.size() > 1) blocks_.clear();
    next_ = blocks_.empty() ? nullptr : blocks_[0].get();
    left_ = blocks_.empty() ? 0 : first_size_;
  }

 private:
  static constexpr std::size_t block_size = 1 << 16;
  std::vector<std::unique_ptr<char[]>> blocks_;
  char* next_ = nullptr;
  std::size_t left_ = 0, first_size_ = 0;  // bytes
};

struct Pieces {
  std::vector<Piece> list;
  std::vector<Piece> next;  // what the step at work makes of `list`
  std::vector<Span> spans;  // a buffer
  TextStore store;

  // Calls divide(piece) for all pieces, which appends to `next`.
  template <class Divide>
  void each(Divide&& divide) {
    next.clear();
    for (const Piece& piece : list) divide(piece);
    list.swap(next);
  }

  // Empty pieces are dropped.
  void add(const Piece& parent, std::size_t begin, std::size_t end) {
    if (begin < end)
      next.push_back({parent.text.substr(begin, end - begin), parent.at_start && begin == 0});
  }
};

}  // namespace ebb::text
