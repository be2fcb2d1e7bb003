// A map from 64-bit keys to small values: pairs of ids, pairs of characters, edges of tries. A
// table of slots with open addressing.
#pragma once

#include <cstdint>
#include <vector>

#include "text/string_map.h"

namespace ebb::text {

template <class Value>
class NumberMap {
 public:
  static constexpr std::uint64_t no_key = ~std::uint64_t{0};  // cannot be stored

  const Value* find(std::uint64_t key) const {
    if (slots_.empty()) return nullptr;
    const std::size_t mask = slots_.size() - 1;
    for (std::size_t at = mixed(key) & mask;; at = (at + 1) & mask) {
      if (slots_[at].key == key) return &slots_[at].value;
      if (slots_[at].key == no_key) return nullptr;
    }
  }

  void set(std::uint64_t key, const Value& value) {
    if (2 * (count_ + 1) > slots_.size()) grow();
    if (place(key, value)) ++count_;
  }

 private:
  struct Slot {
    std::uint64_t key = no_key;
    Value value{};
  };

  bool place(std::uint64_t key, const Value& value) {  // whether the key is new
    const std::size_t mask = slots_.size() - 1;
    std::size_t at = mixed(key) & mask;
    while (slots_[at].key != no_key && slots_[at].key != key) at = (at + 1) & mask;
    const bool is_new = slots_[at].key == no_key;
    slots_[at] = {key, value};
    return is_new;
  }

  void grow() {
    std::vector<Slot> old(slots_.empty() ? 64 : 2 * slots_.size());
    old.swap(slots_);
    for (const Slot& slot : old)
      if (slot.key != no_key) place(slot.key, slot.value);
  }

  std::vector<Slot> slots_;  // a power of two, at most half full
  std::size_t count_ = 0;
};

// Two 32-bit numbers as one key.
constexpr std::uint64_t pair_key(std::uint32_t first, std::uint32_t second) {
  return static_cast<std::uint64_t>(first) << 32 | second;
}

}  // namespace ebb::text
