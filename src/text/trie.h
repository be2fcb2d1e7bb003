// A set of byte strings with a value each; finds all of them that a text begins with.
#pragma once

#include <string_view>

#include "text/number_map.h"

namespace ebb::text {

class Trie {
 public:
  static constexpr std::int32_t none = -1;

  // A string that is there already takes the new value. `value` is not negative.
  void set(std::string_view key, std::int32_t value) {
    std::uint32_t node = 0;
    for (char c : key) {
      const std::uint64_t edge = pair_key(node, static_cast<unsigned char>(c));
      const std::uint32_t* next = edges_.find(edge);
      if (next) {
        node = *next;
      } else {
        edges_.set(edge, static_cast<std::uint32_t>(values_.size()));
        node = static_cast<std::uint32_t>(values_.size());
        values_.push_back(none);
      }
    }
    values_[node] = value;
  }

  // take(length, value) for every key that `text` begins with, from the shortest to the longest.
  template <class Take>
  void each_prefix(std::string_view text, Take&& take) const {
    std::uint32_t node = 0;
    for (std::size_t i = 0; i < text.size(); ++i) {
      const std::uint32_t* next = edges_.find(pair_key(node, static_cast<unsigned char>(text[i])));
      if (!next) return;
      node = *next;
      if (values_[node] != none) take(i + 1, values_[node]);
    }
  }

 private:
  NumberMap<std::uint32_t> edges_;             // (node, byte) to node; node 0 is the root
  std::vector<std::int32_t> values_ = {none};  // by node
};

}  // namespace ebb::text
